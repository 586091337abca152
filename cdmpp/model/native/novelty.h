// How far programs lie from those of a training: `Novelty` of Python says what is computed.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "linear.h"

// All in float64, as Python keeps them; `directions` lie as they are read.
struct NoveltyTables {
    const double* mean;                         // (hidden,)
    const double* directions;                   // (hidden, components)
    const double* variances;                    // (components + 1,)
    const double *largest, *smallest, *factor;  // (facts,); `factor` is one over the deviation
    int64_t n_hidden, n_components, n_facts;
};

template <int LANES>
INLINE double distance_of(const NoveltyTables& t, const float* hidden) {
    constexpr int64_t SOME = 2 * LANES;  // components whose sums stay in registers
    double total = 0.0, along = 0.0, squared = 0.0;
    for (int64_t first = 0; first < t.n_components; first += SOME) {
        double sums[SOME] = {};
        if (const int64_t n = t.n_components - first; n >= SOME) {
            for (int64_t h = 0; h < t.n_hidden; ++h)
                for (int64_t c = 0; c < SOME; ++c) sums[c] += (hidden[h] - t.mean[h]) * t.directions[h * t.n_components + first + c];
        } else {
            for (int64_t h = 0; h < t.n_hidden; ++h)
                for (int64_t c = 0; c < n; ++c) sums[c] += (hidden[h] - t.mean[h]) * t.directions[h * t.n_components + first + c];
        }
        for (int64_t c = 0; c < std::min(SOME, t.n_components - first); ++c) {
            along += sums[c] * sums[c];
            squared += sums[c] * sums[c] / t.variances[first + c];
        }
    }
    for (int64_t h = 0; h < t.n_hidden; ++h) total += (hidden[h] - t.mean[h]) * (hidden[h] - t.mean[h]);
    squared += (total > along ? total - along : total >= 0.0 ? 0.0 : total) / t.variances[t.n_components];
    return std::sqrt(squared / static_cast<double>(t.n_hidden));
}

template <int LANES>
INLINE double excess_of(const NoveltyTables& t, const float* largest, const float* smallest) {
    double most[LANES] = {};
    int32_t is_none[LANES] = {};  // a number
    auto look = [&](int64_t i, int64_t lane) INLINE_LAMBDA {
        const double above = largest[i] - t.largest[i], below = t.smallest[i] - smallest[i];
        const double outside = (above > below ? above : below) * t.factor[i];
        is_none[lane] |= (above != above) | (below != below);
        most[lane] = outside > most[lane] ? outside : most[lane];
    };
    int64_t i = 0;
    for (; i + LANES <= t.n_facts; i += LANES)
        for (int64_t lane = 0; lane < LANES; ++lane) look(i + lane, lane);
    for (; i < t.n_facts; ++i) look(i, 0);
    double found = 0.0;
    for (int64_t lane = 0; lane < LANES; ++lane)
        found = is_none[lane] || found != found ? std::numeric_limits<double>::quiet_NaN() : std::fmax(found, most[lane]);
    return found;
}

// `hidden` (n, hidden), `largest` and `smallest` (n, facts) -> (n,) each; where one is null it is left out.
template <int LANES>
INLINE void compare(const NoveltyTables& t, const float* hidden, const float* largest, const float* smallest, int64_t n,
                    double* distance, double* excess) {
    for (int64_t i = 0; distance && i < n; ++i) distance[i] = distance_of<LANES>(t, hidden + i * t.n_hidden);
    for (int64_t i = 0; excess && i < n; ++i)
        excess[i] = excess_of<LANES>(t, largest + i * t.n_facts, smallest + i * t.n_facts);
}
