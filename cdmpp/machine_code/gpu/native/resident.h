// Warps that live on one scheduler together, in time; resident.py says what is timed.
#pragma once

#include <cmath>

#include "warp.h"

namespace sass {

struct Core {
    double fma_cycles, alu_cycles, special_cycles, special_latency, shared_latency, store_latency, l1_latency, l2_latency,
        l1_sectors_per_cycle, l1_lines_per_cycle, l2_sectors_per_cycle, store_sectors_per_cycle, merged_share,
        barrier_cycles;
};

struct Residents {
    double blocks, warps, sharers, missing;
};

class Scheduler {
public:
    Scheduler(const Row* rows, const Step* trace, int64_t length, const Core& core, const Residents& residents)
        : rows(rows), trace(trace), length(length), core(core), residents(residents) {
        int64_t own = int64_t(residents.warps), count = int64_t(residents.blocks) * own;
        for (int64_t i = 0; i < count; i++) warps.push_back({i / own, i});
        left = count;
        alive.assign(size_t(residents.blocks), own);
        arrived.assign(size_t(residents.blocks), 0);
    }

    void run() {
        Resident* before = nullptr;
        while (left) {
            Resident* best = nullptr;
            int64_t soonest = 0;
            for (auto& warp : warps) {
                if (warp.done || warp.waiting) continue;
                int64_t ready = ready_at(warp);
                if (!best || ready < soonest || (ready == soonest && &warp == before)) {
                    best = &warp;
                    soonest = ready;
                }
            }
            if (!best) {  // all wait at barriers for warps that are gone
                for (int64_t block = 0; block < int64_t(residents.blocks); block++) release(block, true);
                continue;
            }
            now = soonest;
            issue(*best);
            before = best;
            now++;
        }
        last = std::max(last, int64_t(std::max(memory, l2)));
    }

    int64_t last = 0;
    double memory = 0, l2 = 0;

private:
    static constexpr int SCOREBOARDS = 6;
    struct Resident {
        int64_t block, ready, place = 0;
        int64_t scoreboards[SCOREBOARDS] = {};
        int64_t copied = 0;
        std::vector<int64_t> groups{};
        bool waiting = false, done = false;
    };

    const Row* rows;
    const Step* trace;
    int64_t length;
    const Core& core;
    const Residents& residents;
    std::vector<Resident> warps;
    std::vector<int64_t> alive, arrived;
    int64_t left, now = 0, fma = 0, alu = 0, special = 0;

    int64_t ready_at(const Resident& warp) const {
        const Row& row = rows[trace[warp.place].at];
        int64_t ready = std::max(warp.ready, now), waits = row[WAITS];
        for (int i = 0; waits; i++, waits >>= 1)
            if (waits & 1) ready = std::max(ready, warp.scoreboards[i]);
        switch (row[PIPE]) {
            case PIPE_FMA: return std::max(ready, fma);
            case PIPE_ALU: return std::max(ready, alu);
            case PIPE_SPECIAL: return std::max(ready, special - SPECIAL_QUEUE);
            case PIPE_MEMORY:
                return std::max(
                    ready, int64_t(std::max(memory, l2 - L2_QUEUE) - double(MEMORY_QUEUE) * residents.sharers)
                );
        }
        return ready;
    }

    void issue(Resident& warp) {
        const Step& step = trace[warp.place];
        const Row& row = rows[step.at];
        int64_t kind = row[KIND], pipe = row[PIPE], done = now;
        if (pipe == PIPE_FMA) {
            fma = now + int64_t(core.fma_cycles);
        } else if (pipe == PIPE_ALU) {
            alu = now + int64_t(core.alu_cycles);
        } else if (pipe == PIPE_SPECIAL) {
            special = std::max(special, now) + int64_t(core.special_cycles);
            done = special + int64_t(core.special_latency);
        } else if (pipe == PIPE_MEMORY) {
            done = access(row, step, kind);
        }
        auto hold = [&](int64_t board, int64_t until) {
            if (board < SCOREBOARDS) warp.scoreboards[board] = std::max(warp.scoreboards[board], until);
        };
        hold(row[WRITE_BARRIER], done);
        hold(row[READ_BARRIER], std::min(done, now + std::max(OPERANDS_CYCLES, int64_t(memory) - now + 4)));
        int64_t onward = now + std::max<int64_t>(row[STALL], 1);
        if (kind == COPY) {
            warp.copied = std::max(warp.copied, done);
        } else if (kind == COMMIT) {
            warp.groups.push_back(warp.copied);
        } else if (kind == WAIT && int64_t(warp.groups.size()) > row[OPTION]) {
            onward = std::max(onward, warp.groups[warp.groups.size() - 1 - row[OPTION]]);
        }
        warp.ready = onward;
        last = std::max(last, onward);
        warp.place++;
        if (warp.place >= length) {
            warp.done = true;
            left--;
            alive[warp.block]--;
            release(warp.block, false);
        } else if (kind == BARRIER) {
            warp.waiting = true;
            arrived[warp.block]++;
            release(warp.block, false);
        }
    }

    int64_t access(const Row& row, const Step& step, int64_t kind) {
        double units = step.units, fresh = step.fresh, begin = std::max(memory, double(now));
        int64_t space = row[SPACE];
        if (space == SPACE_NONE || space == SPACE_SHARED) {
            if (kind == LOAD) units = units * (1.0 - core.merged_share) + step.merged * core.merged_share;
            memory = begin + residents.sharers * std::max(1.0, units);
            return int64_t(memory) + int64_t(kind != STORE ? core.shared_latency : core.store_latency);
        }
        double passes = std::max(units / core.l1_sectors_per_cycle, step.merged / core.l1_lines_per_cycle);
        memory = begin + residents.sharers * std::max(1.0, passes);
        if (kind == STORE) {
            l2 = std::max(l2, memory) + residents.sharers * units / core.store_sectors_per_cycle;
            return int64_t(memory) + int64_t(core.store_latency);
        }
        if (space == SPACE_LOCAL || !fresh) return int64_t(memory) + int64_t(core.l1_latency);
        l2 = std::max(l2, memory) + residents.sharers * fresh * residents.missing / core.l2_sectors_per_cycle;
        return int64_t(l2) + int64_t(core.l2_latency);
    }

    void release(int64_t block, bool by_force) {
        if (!alive[block] || !(by_force || arrived[block] >= alive[block])) return;
        arrived[block] = 0;
        int64_t after = now + 2 * int64_t(residents.warps) + int64_t(core.barrier_cycles);
        for (auto& warp : warps)
            if (warp.block == block && !warp.done && warp.waiting) {
                warp.waiting = false;
                warp.ready = std::max(warp.ready, after);
            }
    }
};

}  // namespace sass
