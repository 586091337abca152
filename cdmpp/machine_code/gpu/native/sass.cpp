// Entry points for warp.py and resident.py.
#include "resident.h"

// Executes one warp; writes at most `limit` steps. Returns how many, or -1 - code of the fault, with its place in *where.
// `numbers`: count of rows, stack bytes, offsets of arguments and of the stack, bytes of literals, grid x y z, block
// x y z, block, warp, limit. *ended: 1 where the warp ran to its end.
extern "C" int64_t warp_steps(
    const int64_t* rows, const uint8_t* literals, const int64_t* numbers, sass::Step* steps, int64_t* ended, int64_t* where
) {
    sass::Kernel kernel{
        reinterpret_cast<const sass::Row*>(rows), numbers[0], numbers[1], numbers[2], numbers[3], literals, numbers[4],
        {numbers[5], numbers[6], numbers[7]}, {numbers[8], numbers[9], numbers[10]},
    };
    sass::Warp warp(kernel, numbers[11], numbers[12]);
    std::vector<sass::Step> found;
    *ended = warp.run(numbers[13], found);
    if (warp.fault) {
        *where = warp.fault_at;
        return -1 - warp.fault;
    }
    std::copy(found.begin(), found.end(), steps);
    return int64_t(found.size());
}

// Times the warps of one scheduler that all issue `trace`. `core` and `residents` as in resident.h; found: cycles, those
// of the pipe to memory, those of the second-level cache.
extern "C" void resident_cycles(
    const int64_t* rows, const sass::Step* trace, int64_t length, const double* core, const double* residents,
    int64_t most_issued, double* found
) {
    const auto& shared = *reinterpret_cast<const sass::Residents*>(residents);
    int64_t count = int64_t(shared.blocks * shared.warps);
    int64_t issued = std::min(length, std::max<int64_t>(most_issued / count, 1));
    sass::Scheduler scheduler(
        reinterpret_cast<const sass::Row*>(rows), trace, issued, *reinterpret_cast<const sass::Core*>(core), shared
    );
    scheduler.run();
    double scale = double(length) / double(issued);
    found[0] = double(scheduler.last) * scale;
    found[1] = scheduler.memory * scale;
    found[2] = scheduler.l2 * scale;
}
