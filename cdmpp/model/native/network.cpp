// Answers and gradients of a `CdmppModel` on a CPU, each program by itself, without padding. `model/regressor.py` says what
// is computed; tests hold both to the same numbers.

#include "answer.h"
#include "novelty.h"
#include "pooled.h"
#include "ranker.h"
#include "ranker_gradient.h"
#include "training.h"

namespace {

constexpr int64_t TOKENS = 96;  // that are computed together: what is made of them stays in the second-level cache

using Run = void (*)(const Answering&, const Programs&, const int64_t*, int64_t, Tape&, Answers);
using Scores = void (*)(const Ranker&, const float*, int64_t, float*);
using Ranked = void (*)(const RankedTasks&, const Member&);
using Compare = void (*)(const NoveltyTables&, const float*, const float*, const float*, int64_t, double*, double*);

struct Code {
    Run run;
    Answer forward;
    Gradients backward;
    WeightPanel weight_panel;
    Scores scores;
    Ranked ranked;
    Compare compare;
    int64_t panel;
};

// The same code for vectors of other widths; `FOR` tells the compiler which instructions the processor has.
#define CODE(NAME, LANES, FOR)                                                                                          \
    }                                                                                                                   \
    template <>                                                                                                         \
    FOR __attribute__((noinline)) void product_panel<LANES>(const float* a, int64_t row, int64_t step, int64_t rows,     \
                                                            const float* panel, int64_t depth, const float* bias,       \
                                                            float* to, int64_t to_stride, int64_t columns, bool adds) { \
        if (step == 1) product_all<LANES>(a, row, 1, rows, panel, depth, bias, to, to_stride, columns, adds);            \
        else product_all<LANES>(a, row, step, rows, panel, depth, bias, to, to_stride, columns, adds);                  \
    }                                                                                                                   \
    namespace {                                                                                                         \
    FOR void NAME##_run(const Answering& a, const Programs& p, const int64_t* rows, int64_t n, Tape& m, Answers to) {   \
        answer<LANES>(a, p, rows, n, m, to);                                                                            \
    }                                                                                                                   \
    FOR void NAME##_forward(const Network& net, const Programs& p, const PriorTables& known, const uint8_t* is_hidden,  \
                            const int64_t* rows, int64_t n, Tape& m, double* log_latency, float* hidden) {              \
        known_answer<LANES>(net, p, known, is_hidden, rows, n, m, log_latency, hidden);                                 \
    }                                                                                                                   \
    FOR void NAME##_backward(const Network& net, const Array* weights, const Slots& slots, const Programs& p,           \
                             const int64_t* rows, int64_t n, Tape& m, const double* log_latency,                        \
                             const float* of_latency, const float* of_hidden, Spare& x, float* to) {                    \
        gradients<LANES>(net, weights, slots, p, rows, n, m, log_latency, of_latency, of_hidden, x, to);                \
    }                                                                                                                   \
    FOR void NAME##_weight_panel(const std::vector<std::unique_ptr<Tape>>& chunks, int64_t i, int64_t first, float* to, \
                                 Floats& spare) {                                                                       \
        weight_panel<LANES>(chunks, i, first, to, spare);                                                               \
    }                                                                                                                   \
    FOR void NAME##_scores(const Ranker& ranker, const float* rows, int64_t n, float* to) {                             \
        ranker_scores<LANES>(ranker, rows, n, to);                                                                      \
    }                                                                                                                   \
    FOR void NAME##_ranked(const RankedTasks& of, const Member& member) { ranker_gradient<LANES>(of, member); }         \
    FOR void NAME##_compare(const NoveltyTables& tables, const float* hidden, const float* largest, const float* smallest, \
                            int64_t n, double* distance, double* excess) {                                              \
        compare<LANES>(tables, hidden, largest, smallest, n, distance, excess);                                         \
    }                                                                                                                   \
    constexpr Code NAME{NAME##_run, NAME##_forward, NAME##_backward, NAME##_weight_panel, NAME##_scores, NAME##_ranked,              \
                        NAME##_compare, 2 * LANES};

CODE(any, 4, )
#if defined(__x86_64__)
CODE(avx2, 8, __attribute__((target("avx2,fma"), flatten)))
CODE(avx512, 16, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"), flatten)))
#endif

Code chosen() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
        return avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2;
#endif
    return any;
}

}  // namespace

extern "C" {

const char* network_quantities() { return QUANTITIES(TEXT); }
const char* network_numbers() { return NUMBERS(TEXT); }

Answering* network_new(const Shape* shape, const Array* arrays, const Layout* layout, const CodeLayout* code,
                       const int32_t* bound) {
    return new Answering(*shape, arrays, *layout, *code, bound, chosen().panel);
}

void network_delete(Answering* made) { delete made; }

void network_answers(Answering* made, const Programs* programs, const int64_t* rows, int64_t n, const Answers* to,
                     int32_t threads) {
    const Shape& s = made->net.shape;
    std::vector<int64_t> chunks{0};
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; ++i) {
        tokens += programs->kernel_counts[rows[i]] + programs->leaf_counts[rows[i]];
        if (tokens >= TOKENS) chunks.push_back(i + 1), tokens = 0;
    }
    if (chunks.back() != n) chunks.push_back(n);
    const int64_t n_chunks = static_cast<int64_t>(chunks.size()) - 1, facts = s.leaf_width + s.kernel_width;
    const Run run = chosen().run;
    in_threads(n_chunks, threads, [&](auto next) {
        std::unique_ptr<Tape> tape = made->tape();
        for (int64_t c; next(c);) {
            const int64_t at = chunks[c];
            const Answers own{to->log_latency + at, to->hidden + at * s.hidden, to->largest + at * facts,
                              to->smallest + at * facts};
            run(*made, *programs, rows + at, chunks[c + 1] - at, *tape, own);
        }
        made->give_back(std::move(tape));
    });
}

Trainer* network_trainer_new(const Shape* shape, const Array* arrays, const Layout* layout, const CodeLayout* code,
                             const int32_t* bound) {
    return new Trainer{Network(*shape, arrays, *layout, *code, bound, chosen().panel), {}, {}, {}, {}};
}

void network_trainer_delete(Trainer* trainer) { delete trainer; }

// `weights` as at `Weight`; `is_hidden` (n,): programs whose code is not read. `log_latency` (n,), `hidden` (n, hidden).
Pass* network_forward(Trainer* trainer, const Array* weights, const Programs* programs, const PriorTables* known,
                      const int64_t* rows, const uint8_t* is_hidden, int64_t n, double* log_latency, float* hidden,
                      int32_t threads) {
    trainer->net.read(weights);
    Pass* pass = new Pass(*trainer, *programs, rows, n);
    pass->forward(*known, is_hidden, hidden, threads, chosen().forward);
    std::copy(pass->log_latency.begin(), pass->log_latency.end(), log_latency);
    return pass;
}

void network_backward(Pass* pass, const Array* weights, int64_t devices, const float* of_latency, const float* of_hidden,
                      float* const* to, int32_t threads) {
    pass->backward(weights, devices, of_latency, of_hidden, to, threads, chosen().backward, chosen().weight_panel);
}

void network_pass_delete(Pass* pass) { delete pass; }

// `to` (n, width). No factor of the analytic time is fitted: all are 1, and so is the exponential of its sharpness.
void network_pooled(const PooledTables* tables, const Layout* layout, const int32_t* bound, int64_t n, int64_t width,
                    float* to) {
    AnalyticPrior prior;
    for (int p = 0; p < N_PARTS; ++p) prior.bound[p] = bound[p], prior.factor[p] = 1.0f;
    prior.power[0] = prior.power[1] = 1.0f + std::exp(1.0f);
    std::vector<float> rows;
    for (int64_t i = 0; i < n; ++i) pool(*tables, prior, *layout, i, to + i * width, rows);
}

Ranker* network_ranker_new(const float* const* arrays, int64_t inputs, int64_t width, int64_t members, float clip) {
    return new Ranker(arrays, inputs, width, members, clip, chosen().panel);
}

void network_ranker_delete(Ranker* ranker) { delete ranker; }

// A step of each of `n` members, in threads: the tasks that it sees, and its weights.
void network_ranker_gradients(const RankedTasks* tasks, const Member* members, int64_t n, int32_t threads) {
    const Ranked run = chosen().ranked;
    in_threads(n, threads, [&](auto next) {
        for (int64_t i; next(i);) run(tasks[i], members[i]);
    });
}

void network_compare(const NoveltyTables* tables, const float* hidden, const float* largest, const float* smallest, int64_t n,
                     double* distance, double* excess) {
    chosen().compare(*tables, hidden, largest, smallest, n, distance, excess);
}

void network_ranker_scores(const Ranker* ranker, const float* rows, int64_t n, float* to) {
    chosen().scores(*ranker, rows, n, to);
}
}
