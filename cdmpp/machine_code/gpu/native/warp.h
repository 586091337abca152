// One warp of a kernel, executed; warp.py says what comes out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <unordered_set>
#include <vector>

#include "rows.h"

namespace sass {

constexpr int LANES = 32;
constexpr uint32_t ALL = 0xffffffffu;

struct Row {
    int64_t at[FIELD_COUNT];
    int64_t operator[](Field field) const { return at[field]; }
};

struct Step {
    int32_t at;
    uint16_t lanes, units, fresh, merged;
};

struct Kernel {
    const Row* rows;
    int64_t count;
    int64_t stack_bytes, arguments_at, stack_at;
    const uint8_t* literals;
    int64_t literal_bytes;
    int64_t grid[3], block[3];
};

// Why a kernel cannot be executed: nonzero codes go back to Python, which says it in words.
enum Fault : int64_t { FINE = 0, BRANCHES_ON_DATA = 1, UNKNOWN_RETURN = 2, UNKNOWN_ADDRESS = 3, LEAVES_STACK = 4 };

struct Values {
    uint32_t of[LANES];
};

class Warp {
public:
    Warp(const Kernel& kernel, int64_t block, int64_t warp)
        : kernel(kernel),
          registers(REGISTERS),
          known(REGISTERS, ALL),
          local((kernel.stack_bytes / 4 + 1) * LANES),
          local_known(kernel.stack_bytes / 4 + 1, ALL) {
        for (auto& values : registers) std::fill(values.of, values.of + LANES, 0);
        predicates[TRUE_PREDICATE] = ALL;
        int64_t x = kernel.block[0], y = kernel.block[1], across = kernel.grid[0], up = kernel.grid[1];
        alive = 0;
        for (int lane = 0; lane < LANES; lane++) {
            int64_t thread = warp * LANES + lane;
            int64_t here[] = {thread % x, thread / x % y, thread / (x * y), block % across, block / across % up,
                              block / (across * up), lane, 0};
            for (int i = 0; i < 8; i++) special[i].of[lane] = uint32_t(here[i]);
            if (thread < x * y * kernel.block[2]) alive |= 1u << lane;
        }
        std::fill(place, place + LANES, 0);
    }

    // Steps until the warp ends, a fault, or the limit.
    bool run(int64_t limit, std::vector<Step>& steps) {
        together = true;
        common = 0;
        while (alive && int64_t(steps.size()) < limit) {
            int64_t at = common;
            uint32_t here = alive;
            if (!together) {
                at = INT64_MAX;
                for_each(alive, [&](int lane) { at = std::min(at, place[lane]); });
                here = 0;
                for_each(alive, [&](int lane) { here |= uint32_t(place[lane] == at) << lane; });
                if (here == alive) {
                    together = true;
                    common = at;
                }
            }
            if (at >= kernel.count) break;
            Step step{int32_t(at), 0, 0, 0, 0};
            execute(kernel.rows[at], here, at, step);
            if (fault) return false;
            steps.push_back(step);
        }
        return int64_t(steps.size()) < limit;
    }

    Fault fault = FINE;
    int64_t fault_at = 0;

private:
    const Kernel& kernel;
    std::vector<Values> registers;
    std::vector<uint32_t> known;
    std::vector<uint32_t> local, local_known;
    uint32_t predicates[PREDICATES] = {}, predicates_unknown[PREDICATES] = {};
    Values special[8];
    uint32_t alive;
    int64_t place[LANES], common = 0;
    bool together = true;
    std::unordered_set<uint64_t> touched;

    template <typename F>
    static void for_each(uint32_t mask, F what) {
        for (; mask; mask &= mask - 1) what(__builtin_ctz(mask));
    }

    void fails(Fault why, int64_t at) {
        fault = why;
        fault_at = at;
    }

    void split() {
        if (!together) return;
        together = false;
        std::fill(place, place + LANES, common);
    }

    void go_on(uint32_t here, int64_t at) {
        if (together)
            common = at + 1;
        else
            for_each(here, [&](int lane) { place[lane] = at + 1; });
    }

    void jump(uint32_t lanes, int64_t target) {
        if (!lanes) return;
        if (together && lanes == alive) {
            common = target;
            return;
        }
        split();
        for_each(lanes, [&](int lane) { place[lane] = target; });
    }

    uint32_t predicate(const Row& row, Field name, Field negated) const {
        return predicates[row[name]] ^ (row[negated] ? ALL : 0);
    }
    uint32_t predicate_known(const Row& row, Field name) const { return ~predicates_unknown[row[name]]; }

    void execute(const Row& row, uint32_t here, int64_t at, Step& step) {
        int64_t kind = row[KIND];
        uint32_t guard = predicate(row, GUARD, GUARD_NOT), sure = predicate_known(row, GUARD);
        bool jumps = kind == BRANCH || kind == RETURN || kind == EXIT;
        if (jumps && (here & ~sure)) {
            if (kind != BRANCH || !row[OPTION]) return fails(BRANCHES_ON_DATA, at);
            guard = row[OPTION] == 1 ? ALL : 0;
        }
        uint32_t active = here & (jumps ? guard : guard | ~sure);
        step.lanes = uint16_t(__builtin_popcount(active));
        go_on(here, at);
        if (kind == BRANCH) {
            if (active & ~predicate_known(row, PREDICATE)) return fails(BRANCHES_ON_DATA, at);
            jump(active & predicate(row, PREDICATE, PREDICATE_NOT), row[TARGET]);
        } else if (kind == RETURN) {
            Operand back = source(row, 0);
            if (active & ~back.known) return fails(UNKNOWN_RETURN, at);
            for_each(active, [&](int lane) {
                int64_t target = back.of[lane] / INSTRUCTION_BYTES;
                if (target <= 0 || target >= kernel.count) alive &= ~(1u << lane);
                jump(1u << lane, target);
            });
        } else if (kind == EXIT) {
            alive &= ~active;
        } else if (active) {
            if (kind == LOAD || kind == STORE || kind == COPY)
                move(row, kind, active, sure, at, step);
            else
                compute(row, kind, active, sure, here);
        }
    }

    struct Operand {
        uint32_t of[LANES];
        uint32_t known;
    };

    static Field part(Field first, int i) { return Field(first + 3 * i); }

    uint32_t constant(int64_t value, bool& sure) const {
        int64_t bank = value >> 16, offset = value & 0xffff;
        sure = true;
        if (bank == 2 && offset + 4 <= kernel.literal_bytes) {
            uint32_t number = 0;
            for (int i = 3; i >= 0; i--) number = number << 8 | kernel.literals[offset + i];
            return number;
        }
        if (bank) {
            sure = false;
            return 0;
        }
        if (offset >= kernel.arguments_at) {
            int64_t number = (offset - kernel.arguments_at) / 8;
            uint64_t pointer = POINTERS + (uint64_t(number) << POINTERS_APART);
            return uint32_t((offset - kernel.arguments_at) % 8 ? pointer >> 32 : pointer);
        }
        if (offset == kernel.stack_at) return uint32_t(kernel.stack_bytes);
        if (offset == 0 || offset == 4 || offset == 8) return uint32_t(kernel.block[offset / 4]);
        if (offset == 12 || offset == 16 || offset == 20) return uint32_t(kernel.grid[offset / 4 - 3]);
        return 0;
    }

    Operand plain(const Row& row, int i, int further = 0) const {
        int64_t kind = row[part(SOURCE0_KIND, i)], value = row[part(SOURCE0_VALUE, i)];
        Operand found{{}, ALL};
        if (kind == SOURCE_REGISTER) {
            if (value == ZERO_REGISTER || value == UNIFORM_ZERO_REGISTER) return found;
            std::copy_n(registers[value + further].of, LANES, found.of);
            found.known = known[value + further];
            return found;
        }
        bool sure = true;
        uint32_t number = kind == SOURCE_CONSTANT ? constant(value + 4 * further, sure) : further ? 0 : uint32_t(value);
        std::fill(found.of, found.of + LANES, number);
        if (!sure) found.known = 0;
        return found;
    }

    Operand source(const Row& row, int i) const {
        Operand found = plain(row, i);
        int64_t flags = row[part(SOURCE0_FLAGS, i)];
        if (flags)
            for (auto& x : found.of) {
                if (flags & MAGNITUDE_FLAG && int32_t(x) < 0) x = -x;
                if (flags & NEGATED_FLAG) x = -x;
                if (flags & INVERTED_FLAG) x = ~x;
            }
        return found;
    }

    struct Wide {
        uint64_t of[LANES];
        uint32_t known;
    };

    Wide wide_source(const Row& row, int i) const {
        Operand low = plain(row, i);
        Wide found;
        found.known = low.known;
        if (row[part(SOURCE0_KIND, i)] == SOURCE_IMMEDIATE) {
            for (int lane = 0; lane < LANES; lane++) found.of[lane] = uint64_t(int64_t(int32_t(low.of[lane])));
        } else {
            Operand high = plain(row, i, 1);
            found.known &= high.known;
            for (int lane = 0; lane < LANES; lane++) found.of[lane] = uint64_t(high.of[lane]) << 32 | low.of[lane];
        }
        if (row[part(SOURCE0_FLAGS, i)] & NEGATED_FLAG)
            for (auto& x : found.of) x = -x;
        return found;
    }

    void set(const Row& row, const uint64_t* values, uint32_t sure_values, uint32_t active, uint32_t sure, bool wide) {
        int64_t to = row[TO], count = row[TO_COUNT];
        if (to == ZERO_REGISTER || to == UNIFORM_ZERO_REGISTER) return;
        int first = __builtin_ctz(active);
        for (int64_t k = 0; k < count; k++) {
            uint32_t* there = registers[to + k].of;
            auto word = [&](int lane) { return k ? (wide ? uint32_t(values[lane] >> 32) : 0u) : uint32_t(values[lane]); };
            if (to >= UNIFORM_REGISTERS) {  // one value for all lanes: that of the first which takes part
                std::fill(there, there + LANES, word(first));
                known[to + k] = (sure_values & sure) >> first & 1 ? ALL : 0;
            } else {
                for_each(active, [&](int lane) { there[lane] = word(lane); });
                known[to + k] = (known[to + k] & ~active) | (sure_values & sure & active);
            }
        }
    }

    void set_predicate(int64_t to, uint32_t value, uint32_t sure_value, uint32_t active, uint32_t sure) {
        if (to == TRUE_PREDICATE) return;
        uint32_t is_known = sure_value & sure;
        if (to >= UNIFORM_PREDICATE_PLACE) {
            int first = __builtin_ctz(active);
            value = value >> first & 1 ? ALL : 0;
            is_known = is_known >> first & 1 ? ALL : 0;
            active = ALL;
        }
        predicates[to] = (predicates[to] & ~active) | (value & active);
        predicates_unknown[to] = (predicates_unknown[to] & ~active) | (~is_known & active);
    }

#include "compute.h"
#include "memory.h"
};

}  // namespace sass
