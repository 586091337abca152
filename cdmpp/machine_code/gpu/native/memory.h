// Part of the class Warp: what an access moves.

    void move(const Row& row, int64_t kind, uint32_t active, uint32_t sure, int64_t at, Step& step) {
        int64_t space = row[SPACE], width = row[WIDTH];
        bool global = space == SPACE_GLOBAL;
        uint64_t address[LANES];
        uint32_t address_known = ALL;
        int64_t base = row[BASE], uniform = row[UNIFORM_BASE];
        bool pair = global && row[BASE_WIDE];
        if (base != ZERO_REGISTER) address_known &= known[base] & (pair ? known[base + 1] : ALL);
        if (uniform != UNIFORM_ZERO_REGISTER) address_known &= known[uniform] & (global ? known[uniform + 1] : ALL);
        if (active & ~address_known) return fails(UNKNOWN_ADDRESS, at);
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t x = 0;
            if (base != ZERO_REGISTER) {
                x = uint64_t(registers[base].of[lane]) * uint64_t(row[BASE_SCALE]);
                if (pair) x |= uint64_t(registers[base + 1].of[lane]) << 32;
            }
            if (uniform != UNIFORM_ZERO_REGISTER) {
                x += registers[uniform].of[lane];
                if (global) x += uint64_t(registers[uniform + 1].of[lane]) << 32;
            }
            x += uint64_t(row[OFFSET]);
            address[lane] = global ? x : uint32_t(x);
        }
        if (space == SPACE_LOCAL) {
            step.merged = uint16_t(std::max<int64_t>(1, width / 4));
            step.units = uint16_t(step.merged * LINE_SECTORS);
            return move_local(row, kind, address, active, sure, at);
        }
        if (kind == LOAD) {
            uint64_t assumed[LANES];
            std::fill(assumed, assumed + LANES, row[OPTION] == 2);
            set(row, assumed, row[OPTION] > 0 ? ALL : 0, active, sure, false);
        }
        if (space == SPACE_SHARED) {
            step.units = uint16_t(passes(address, width, active));
            step.merged = uint16_t(conflicts(address, width, active));
            return;
        }
        uint64_t sectors[2 * LANES];
        int n = 0;
        for_each(active, [&](int lane) {
            sectors[n++] = address[lane] / SECTOR_BYTES;
            sectors[n++] = (address[lane] + width - 1) / SECTOR_BYTES;
        });
        std::sort(sectors, sectors + n);
        n = int(std::unique(sectors, sectors + n) - sectors);
        step.units = uint16_t(n);
        for (int i = 0; i < n; i++)
            step.merged += i == 0 || sectors[i] / LINE_SECTORS != sectors[i - 1] / LINE_SECTORS;
        if (kind == STORE) {
            step.fresh = uint16_t(n);
        } else {
            for (int i = 0; i < n; i++) step.fresh += touched.insert(sectors[i]).second;
        }
    }

    void move_local(
        const Row& row, int64_t kind, const uint64_t* address, uint32_t active, uint32_t sure, int64_t at
    ) {
        int64_t count = std::max<int64_t>(1, row[WIDTH] / 4), words = int64_t(local_known.size());
        int64_t reg = row[kind == LOAD ? TO : SOURCE0_VALUE];
        bool whole = row[WIDTH] >= 4;
        for_each(active, [&](int lane) {
            if (int64_t(address[lane] / 4) + count > words) fails(LEAVES_STACK, at);
        });
        if (fault) return;
        for (int64_t k = 0; k < count; k++)
            for_each(active, [&](int lane) {
                int64_t word = int64_t(address[lane] / 4) + k;
                uint32_t here = 1u << lane;
                auto put = [&](uint32_t& mask, bool on) { mask = on ? mask | here : mask & ~here; };
                bool is_sure = whole && (sure & here);
                if (kind == STORE) {
                    bool zero = reg == ZERO_REGISTER;
                    local[word * LANES + lane] = zero ? 0 : registers[reg + k].of[lane];
                    put(local_known[word], is_sure && (zero || known[reg + k] & here));
                } else if (reg != ZERO_REGISTER) {
                    registers[reg + k].of[lane] = local[word * LANES + lane];
                    put(known[reg + k], is_sure && (local_known[word] & here));
                }
            });
    }

    // The most different words that one bank has to give.
    static int conflicts(const uint64_t* address, int64_t width, uint32_t active) {
        uint64_t words[4 * LANES];
        int n = 0;
        for_each(active, [&](int lane) {
            for (int64_t k = 0; k < std::max<int64_t>(1, width / 4); k++) words[n++] = address[lane] / 4 + k;
        });
        std::sort(words, words + n);
        n = int(std::unique(words, words + n) - words);
        int bank[32] = {}, most = 0;
        for (int i = 0; i < n; i++) most = std::max(most, ++bank[words[i] % 32]);
        return most;
    }

    static int passes(const uint64_t* address, int64_t width, uint32_t active) {
        if (width <= 4) return conflicts(address, width, active);
        int size = width == 8 ? LANES : LANES / 2, total = 0;
        for (int start = 0; start < LANES; start += size) {
            auto lanes = [&](int from, int n) { return active & uint32_t((uint64_t(1) << n) - 1) << from; };
            auto alike = [&](int apart) {
                bool all = true;
                for_each(lanes(start, size), [&](int lane) {
                    int other = start + ((lane - start) ^ apart);
                    if (active >> other & 1 && address[lane] != address[other]) all = false;
                });
                return all;
            };
            if (alike(1) || alike(2))
                total += conflicts(address, width, lanes(start, size));
            else
                total += conflicts(address, width, lanes(start, size / 2)) +
                         conflicts(address, width, lanes(start + size / 2, size / 2));
        }
        return total;
    }
