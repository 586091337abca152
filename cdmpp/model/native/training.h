// A batch of programs forward and backward, in chunks that any number of threads computes to the same bits.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "gradient.h"

// `threads` share the work of n pieces.
template <class Work>
void in_threads(int64_t n, int32_t threads, const Work& work) {
    std::atomic<int64_t> next{0};
    auto own = [&] {
        work([&](int64_t& piece) { return (piece = next++) < n; });
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < threads && i < n; ++i) others.emplace_back(own);
    own();
    for (std::thread& one : others) one.join();
}

using Answer = void (*)(const Network&, const Programs&, const PriorTables&, const uint8_t*, const int64_t*, int64_t, Tape&,
                        double*, float*);
using Gradients = void (*)(const Network&, const Array*, const Slots&, const Programs&, const int64_t*, int64_t, Tape&,
                           const double*, const float*, const float*, Spare&, float*);

using WeightPanel = void (*)(const std::vector<std::unique_ptr<Tape>>&, int64_t, int64_t, float*, Floats&);

constexpr int64_t CHUNK_TOKENS = 96;  // of a chunk, about; the number of chunks is even, for two cores

struct Trainer {
    Network net;
    std::mutex lock;
    std::vector<std::unique_ptr<Tape>> tapes;  // that no pass holds
    std::vector<Floats> sums;                  // the gradients of each chunk, but for those of dense layers
    std::vector<Spare> spares;                 // of each thread
};

struct Pass {
    Trainer* trainer;
    Programs programs;
    std::vector<int64_t> rows, chunks;  // chunk i is of the rows from chunks[i] to chunks[i + 1]
    std::vector<std::unique_ptr<Tape>> tapes;
    std::vector<double> log_latency;

    Pass(Trainer& trainer_, const Programs& programs_, const int64_t* rows_, int64_t n)
        : trainer(&trainer_), programs(programs_), rows(rows_, rows_ + n), log_latency(n) {
        auto tokens_of = [&](int64_t row) { return programs.kernel_counts[row] + programs.leaf_counts[row]; };
        int64_t tokens = 0, so_far = 0;
        for (const int64_t row : rows) tokens += tokens_of(row);
        const int64_t count = std::max<int64_t>(1, 2 * ((tokens + CHUNK_TOKENS) / (2 * CHUNK_TOKENS)));
        chunks.push_back(0);
        for (int64_t i = 0; i < n; ++i) {
            so_far += tokens_of(rows[i]);
            if (so_far * count >= tokens * static_cast<int64_t>(chunks.size())) chunks.push_back(i + 1);
        }
        const std::lock_guard<std::mutex> held(trainer->lock);
        for (int64_t c = 0; c < n_chunks(); ++c) {
            if (trainer->tapes.empty()) trainer->tapes.push_back(std::make_unique<Tape>());
            tapes.push_back(std::move(trainer->tapes.back()));
            trainer->tapes.pop_back();
        }
    }
    ~Pass() {
        const std::lock_guard<std::mutex> held(trainer->lock);
        for (auto& tape : tapes) trainer->tapes.push_back(std::move(tape));
    }
    int64_t n_chunks() const { return static_cast<int64_t>(chunks.size()) - 1; }

    void forward(const PriorTables& known, const uint8_t* is_hidden, float* hidden, int32_t threads, Answer run) {
        in_threads(n_chunks(), threads, [&](auto next) {
            for (int64_t c; next(c);) {
                const int64_t at = chunks[c];
                run(trainer->net, programs, known, is_hidden + at, rows.data() + at, chunks[c + 1] - at, *tapes[c],
                    log_latency.data() + at, hidden + at * trainer->net.shape.hidden);
            }
        });
    }

    // `to`: a place for each weight, and one for the contexts (devices, width).
    void backward(const Array* weights, int64_t devices, const float* of_latency, const float* of_hidden, float* const* to,
                  int32_t threads, Gradients run, WeightPanel weight_panel) {
        const Network& net = trainer->net;
        const Slots slots(net, devices);
        trainer->sums.resize(std::max<size_t>(trainer->sums.size(), n_chunks()));
        for (int64_t c = 0; c < n_chunks(); ++c) Tape::sized(trainer->sums[c], slots.starts.back());
        trainer->spares.resize(std::max<size_t>(trainer->spares.size(), std::max(threads, 1)));
        std::atomic<int32_t> thread{0};
        in_threads(n_chunks(), threads, [&](auto next) {
            Spare& spare = trainer->spares[thread++];
            for (int64_t c; next(c);) {
                const int64_t at = chunks[c];
                run(net, weights, slots, programs, rows.data() + at, chunks[c + 1] - at, *tapes[c], log_latency.data() + at,
                    of_latency + at, of_hidden + at * net.shape.hidden, spare, trainer->sums[c].data());
            }
        });
        std::vector<std::pair<int64_t, int64_t>> panels;  // weight and first column
        for (int64_t i = 0; i < slots.count(); ++i) {
            const Dense& one = tapes[0]->dense[i];
            for (int64_t first = 0; first < one.in; first += net.panel) panels.emplace_back(i, first);
            if (i == KERNEL_UP || i == LEAF_UP) std::fill(to[i], to[i] + weights[i].size, 0.0f);
            float* sum = trainer->sums[0].data() + slots.starts[i];
            for (int64_t c = 1; c < n_chunks(); ++c) {
                const float* own = trainer->sums[c].data() + slots.starts[i];
                for (int64_t d = 0; d < slots.size(i); ++d) sum[d] += own[d];
            }
            std::copy(sum, sum + slots.size(i), to[i]);
        }
        thread = 0;
        in_threads(static_cast<int64_t>(panels.size()), threads, [&](auto next) {
            Spare& spare = trainer->spares[thread++];
            for (int64_t at; next(at);) {
                const auto [i, first] = panels[at];
                const Dense& one = tapes[0]->dense[i];
                const int64_t width = std::min(net.panel, one.in - first), stride = weights[i].size / one.out;
                float* panel = Tape::sized(spare.last, one.out * net.panel);
                weight_panel(tapes, i, first, panel, spare.panel);
                const std::vector<int32_t>* columns =  // first layers read some columns
                    i == KERNEL_UP ? &net.kernel_columns : i == LEAF_UP ? &net.leaves.used : nullptr;
                for (int64_t row = 0; row < one.out; ++row)
                    for (int64_t k = 0; k < width; ++k)
                        to[i][row * stride + (columns ? (*columns)[first + k] : first + k)] = panel[row * net.panel + k];
            }
        });
    }
};
