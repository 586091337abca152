// Answers of a trained `CdmppModel` on a CPU, each program by itself, without padding. `model/regressor.py` says what is
// computed; tests hold both to the same numbers.

#include <atomic>
#include <thread>

#include "answer.h"

namespace {

constexpr int64_t TOKENS = 96;  // that are computed together: what is made of them stays in the second-level cache

using Run = void (*)(const Network&, const Programs&, const int64_t*, int64_t, Scratch&, Answers);

void any(const Network& net, const Programs& p, const int64_t* rows, int64_t n, Scratch& m, Answers to) {
    answer<4>(net, p, rows, n, m, to);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"), flatten)) void avx2(const Network& net, const Programs& p, const int64_t* rows,
                                                       int64_t n, Scratch& m, Answers to) {
    answer<8>(net, p, rows, n, m, to);
}
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"), flatten)) void avx512(
    const Network& net, const Programs& p, const int64_t* rows, int64_t n, Scratch& m, Answers to) {
    answer<16>(net, p, rows, n, m, to);
}
#endif

struct Choice {
    Run run;
    int64_t panel;
};

Choice chosen() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
        return {avx512, 32};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {avx2, 16};
#endif
    return {any, 8};
}

}  // namespace

extern "C" {

const char* network_quantities() { return QUANTITIES(TEXT); }
const char* network_numbers() { return NUMBERS(TEXT); }

Network* network_new(const Shape* shape, const Array* arrays, const Layout* layout, const CodeLayout* code,
                     const int32_t* bound) {
    return new Network(*shape, arrays, *layout, *code, bound, chosen().panel);
}

void network_delete(Network* net) { delete net; }

void network_answers(const Network* net, const Programs* programs, const int64_t* rows, int64_t n, const Answers* to,
                     int32_t threads) {
    std::vector<int64_t> chunks{0};
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; ++i) {
        tokens += programs->kernel_counts[rows[i]] + programs->leaf_counts[rows[i]];
        if (tokens >= TOKENS) chunks.push_back(i + 1), tokens = 0;
    }
    if (chunks.back() != n) chunks.push_back(n);
    const int64_t n_chunks = static_cast<int64_t>(chunks.size()) - 1, facts = net->shape.leaf_width + net->shape.kernel_width;
    const Run run = chosen().run;
    std::atomic<int64_t> next{0};
    auto work = [&] {
        Scratch scratch;
        for (int64_t c; (c = next++) < n_chunks;) {
            const int64_t at = chunks[c];
            const Answers own{to->log_latency + at, to->hidden + at * net->shape.hidden, to->largest + at * facts,
                              to->smallest + at * facts};
            run(*net, *programs, rows + at, chunks[c + 1] - at, scratch, own);
        }
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < threads && i < n_chunks; ++i) others.emplace_back(work);
    work();
    for (std::thread& one : others) one.join();
}
}
