// Part of the class Warp: what an instruction makes of integers and predicates.

    void compute(const Row& row, int64_t kind, uint32_t active, uint32_t sure, uint32_t here) {
        if (kind == NOTHING || kind == BARRIER || kind == COMMIT || kind == WAIT) return;
        int64_t option = row[OPTION], more = row[MORE];
        uint64_t result[LANES] = {};
        uint32_t yes = 0, second = 0, is_known = ALL, flags_known = ALL;
        bool wide = false;
        if (kind == UNKNOWN) {
            is_known = flags_known = 0;
            set(row, result, is_known, active, sure, false);
            set_predicate(row[TO_PREDICATE], yes, flags_known, active, sure);
            set_predicate(row[TO_SECOND], second, flags_known, active, sure);
            return;
        }
        Operand a = source(row, 0), b = source(row, 1), c = source(row, 2);
        uint32_t read = predicate(row, PREDICATE, PREDICATE_NOT), read_known = predicate_known(row, PREDICATE);
        uint32_t also = predicate(row, SECOND, SECOND_NOT), also_known = predicate_known(row, SECOND);
        auto bit = [](uint32_t mask, int lane) { return mask >> lane & 1; };
        auto in_all = [](auto what) {
            for (int lane = 0; lane < LANES; lane++) what(lane);
        };
        uint32_t all_known = a.known & b.known & c.known;
        switch (kind) {
            case MOVE:
                if (row[TO_COUNT] > 2) {
                    is_known = 0;
                    break;
                }
                is_known = a.known;
                in_all([&](int lane) { result[lane] = a.of[lane]; });
                if (row[TO_COUNT] > 1) {
                    Operand high = plain(row, 0, 1);
                    is_known &= high.known;
                    wide = true;
                    in_all([&](int lane) { result[lane] |= uint64_t(high.of[lane]) << 32; });
                }
                break;
            case SPECIAL:
                in_all([&](int lane) { result[lane] = special[option].of[lane]; });
                break;
            case ADD: {
                is_known = all_known;
                for (int i = 0; i < 3; i++) {
                    Operand term = plain(row, i);
                    int64_t flags = row[part(SOURCE0_FLAGS, i)];
                    // Negated it is inverted and one more, and both count for the carry.
                    bool turned = flags & (NEGATED_FLAG | INVERTED_FLAG);
                    uint64_t extra = flags & NEGATED_FLAG ? 1 : 0;
                    in_all([&](int lane) {
                        result[lane] += turned ? uint64_t(uint32_t(~term.of[lane])) + extra : term.of[lane];
                    });
                }
                if (option >= 1) {
                    is_known &= read_known;
                    in_all([&](int lane) { result[lane] += bit(read, lane); });
                }
                if (option >= 2) {
                    is_known &= also_known;
                    in_all([&](int lane) { result[lane] += bit(also, lane); });
                }
                in_all([&](int lane) {
                    yes |= uint32_t(result[lane] >> 32 > 0) << lane;
                    second |= uint32_t(result[lane] >> 32 > 1) << lane;
                });
                flags_known = is_known;
                break;
            }
            case MULTIPLY:
                is_known = all_known & (option ? read_known : ALL);
                in_all([&](int lane) {
                    result[lane] = a.of[lane] * b.of[lane] + c.of[lane] + (option ? bit(read, lane) : 0);
                });
                break;
            case MULTIPLY_WIDE:
            case MULTIPLY_HIGH: {
                Wide added = wide_source(row, 2);
                is_known = a.known & b.known & added.known;
                flags_known = is_known;
                is_known &= option ? read_known : ALL;
                wide = true;
                in_all([&](int lane) {
                    uint64_t product = more ? uint64_t(a.of[lane]) * b.of[lane]
                                            : uint64_t(int64_t(int32_t(a.of[lane])) * int32_t(b.of[lane]));
                    uint64_t total = product + added.of[lane];
                    yes |= uint32_t(total < product) << lane;
                    total += option ? bit(read, lane) : 0;
                    result[lane] = kind == MULTIPLY_HIGH ? total >> 32 : total;
                });
                break;
            }
            case SHIFT_ADD:
                is_known = flags_known = a.known & b.known;
                in_all([&](int lane) {
                    result[lane] = uint64_t(uint32_t(uint64_t(a.of[lane]) << option)) + b.of[lane];
                    yes |= uint32_t(result[lane] >> 32 > 0) << lane;
                });
                break;
            case SHIFT_ADD_HIGH:
                is_known = a.known & b.known & (more & 2 ? ALL : c.known) & (more & 1 ? read_known : ALL);
                in_all([&](int lane) {
                    uint64_t both = more & 2 ? uint64_t(int64_t(int32_t(a.of[lane])))
                                             : uint64_t(c.of[lane]) << 32 | a.of[lane];
                    result[lane] = (both << option >> 32) + b.of[lane] + (more & 1 ? bit(read, lane) : 0);
                    yes |= uint32_t(result[lane] >> 32 > 0) << lane;
                });
                flags_known = is_known;
                break;
            case SHIFT_LEFT:
            case SHIFT_RIGHT:
                is_known = all_known;
                in_all([&](int lane) {
                    result[lane] = shifted(kind == SHIFT_LEFT, a.of[lane], b.of[lane], c.of[lane], option, more);
                });
                break;
            case LOGIC:
                is_known = flags_known = all_known;
                in_all([&](int lane) {
                    uint32_t x = 0;
                    for (int j = 0; j < 8; j++)
                        if (option >> j & 1)
                            x |= (j & 4 ? a.of[lane] : ~a.of[lane]) & (j & 2 ? b.of[lane] : ~b.of[lane]) &
                                 (j & 1 ? c.of[lane] : ~c.of[lane]);
                    result[lane] = x;
                    yes |= uint32_t(x > 0) << lane;
                });
                break;
            case PREDICATE_LOGIC: {
                uint32_t values[3];
                for (int i = 0; i < 3; i++) {
                    int64_t at = row[part(SOURCE0_VALUE, i)];
                    if (at == ZERO_REGISTER) at = TRUE_PREDICATE;
                    values[i] = predicates[at] ^ (row[part(SOURCE0_FLAGS, i)] ? ALL : 0);
                    flags_known &= ~predicates_unknown[at];
                }
                in_all([&](int lane) {
                    int index = 4 * bit(values[0], lane) + 2 * bit(values[1], lane) + bit(values[2], lane);
                    yes |= uint32_t(option >> index & 1) << lane;
                    second |= uint32_t(more >> index & 1) << lane;
                });
                if ((option == 0 || option == 255) && (more == 0 || more == 255)) flags_known = ALL;
                break;
            }
            case COMPARE:
                flags_known = a.known & b.known & read_known & (more & 8 ? also_known : ALL);
                in_all([&](int lane) {
                    bool found = compared(a.of[lane], b.of[lane], option, more, bit(also, lane)), with = bit(read, lane);
                    auto joined = [&](bool one) { return more & 2 ? one || with : more & 4 ? one != with : one && with; };
                    yes |= uint32_t(joined(found)) << lane;
                    second |= uint32_t(joined(!found)) << lane;
                });
                break;
            case SELECT:
                is_known = read_known & ((read & a.known) | (~read & b.known));
                in_all([&](int lane) { result[lane] = bit(read, lane) ? a.of[lane] : b.of[lane]; });
                break;
            case LEAST:
                is_known = a.known & b.known & read_known;
                in_all([&](int lane) {
                    bool less = more ? a.of[lane] < b.of[lane] : int32_t(a.of[lane]) < int32_t(b.of[lane]);
                    result[lane] = less == bool(bit(read, lane)) ? a.of[lane] : b.of[lane];
                });
                break;
            case ABSOLUTE:
                is_known = a.known;
                in_all([&](int lane) { result[lane] = uint32_t(std::abs(int64_t(int32_t(a.of[lane])))); });
                break;
            case PERMUTE:
                is_known = all_known;
                in_all([&](int lane) {
                    uint64_t both = uint64_t(c.of[lane]) << 32 | a.of[lane];
                    for (int j = 0; j < 4; j++) {
                        uint32_t chosen = b.of[lane] >> 4 * j & 15, byte = uint32_t(both >> 8 * (chosen & 7)) & 255;
                        if (chosen & 8) byte = byte & 128 ? 255 : 0;
                        result[lane] |= uint64_t(byte) << 8 * j;
                    }
                });
                break;
            case DOT:
                is_known = all_known;
                in_all([&](int lane) {
                    uint32_t x = a.of[lane], y = b.of[lane] >> (option ? 16 : 0);
                    result[lane] = c.of[lane] + (x & 0xffff) * (y & 0xff) + (x >> 16) * (y >> 8 & 0xff);
                });
                break;
            case SIGN_EXTEND:
                is_known = a.known & b.known;
                in_all([&](int lane) {
                    uint32_t bits = b.of[lane] & 31, mask = (1u << bits) - 1;
                    bool negative = bits > 0 && a.of[lane] >> (bits - 1) & 1 && !more;
                    result[lane] = (a.of[lane] & mask) | (negative ? ~mask : 0);
                });
                break;
            case BIT_MASK:
                is_known = a.known & b.known;
                in_all([&](int lane) {
                    uint64_t ones = (uint64_t(1) << std::min(b.of[lane], 32u)) - 1;
                    result[lane] = ones << (a.of[lane] & 31);
                });
                break;
            case COUNT_BITS:
                is_known = a.known;
                in_all([&](int lane) { result[lane] = __builtin_popcount(a.of[lane]); });
                break;
            case PREDICATES_TO_REGISTER:
                is_known = a.known;
                for (int j = 0; j < TRUE_PREDICATE; j++)
                    if (option >> j & 1) is_known &= ~predicates_unknown[j];
                in_all([&](int lane) {
                    uint32_t bits = 0;
                    for (int j = 0; j < TRUE_PREDICATE; j++) bits |= bit(predicates[j], lane) << j;
                    result[lane] = (a.of[lane] & ~uint32_t(option << more)) | (bits & uint32_t(option)) << more;
                });
                break;
            case REGISTER_TO_PREDICATES:
                for (int j = 0; j < TRUE_PREDICATE; j++)
                    if (option >> j & 1) {
                        uint32_t value = 0;
                        in_all([&](int lane) { value |= (a.of[lane] >> (more + j) & 1) << lane; });
                        set_predicate(j, value, a.known, active, sure);
                    }
                return;
            case BALLOT: {
                uint32_t votes = here & active & read;
                in_all([&](int lane) { result[lane] = votes; });
                yes = votes ? ALL : 0;
                is_known = flags_known = active & ~read_known ? 0 : ALL;
                break;
            }
        }
        set(row, result, is_known, active, sure, wide);
        set_predicate(row[TO_PREDICATE], yes, flags_known, active, sure);
        set_predicate(row[TO_SECOND], second, flags_known, active, sure);
    }

    static uint64_t shifted(bool left, uint32_t a, uint32_t b, uint32_t c, int64_t high, int64_t more) {
        bool is_signed = more & 1, wide = more & 2, wraps = more & 4;
        uint32_t shift = wide ? b & 63 : wraps ? b & 31 : std::min(b, 32u);
        uint64_t both = uint64_t(c) << 32 | a;
        if (left) return high ? both << shift >> 32 : both << shift;
        if (wide || !high) {
            uint64_t moved = is_signed ? uint64_t(int64_t(both) >> shift) : both >> shift;
            return high ? moved >> 32 : moved;
        }
        return is_signed ? uint64_t(int64_t(int32_t(c)) >> std::min(shift, 31u)) : uint64_t(c) >> shift;
    }

    static bool compared(uint32_t a, uint32_t b, int64_t option, int64_t more, bool low) {
        if (more & 8 && a == b) return low;  // of upper words: where they are equal the lower ones decide
        bool less = more & 1 ? a < b : int32_t(a) < int32_t(b);
        bool results[] = {less, a == b, less || a == b, !less && a != b, a != b, !less, false, true};
        return results[option];
    }
