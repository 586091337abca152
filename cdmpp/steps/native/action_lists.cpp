// What follows from the lists of passes that the ranks of a pipeline run, for many plans at once: when they end, and
// what is alive meanwhile. `cdmpp/steps/action_lists.py` says what the lists mean.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

enum Kind : int32_t { FORWARD, BACKWARD, INPUTS, WEIGHTS, KINDS };
constexpr int64_t ROWS = 8;  // plans that are followed together, so that their times stay in the cache

struct Pass {
  int32_t stage, kind, micro_batch, ends_turn, place;  // `place`: of the stage among those of its rank
};

struct Lists {
  int64_t ranks, stages, micro_batches;
  const int64_t* begins;  // first pass of each rank, and behind all
  const Pass* passes;
  const int32_t* owners;  // rank of each stage

  // Results of a pass that another one reads: of forward passes by the next stage, or by the last one's own backward
  // pass; gradients by the stage before. -1: none.
  int64_t message(int64_t way, int64_t reader, int64_t micro_batch) const {
    return (way * (stages + 1) + reader) * micro_batches + micro_batch;
  }
  int64_t needed(const Pass& one) const {
    if (one.kind == FORWARD) return one.stage ? message(0, one.stage, one.micro_batch) : -1;
    if (one.kind == WEIGHTS) return -1;
    const bool is_last = one.stage == stages - 1;
    return is_last ? message(0, stages, one.micro_batch) : message(1, one.stage, one.micro_batch);
  }
  int64_t made(const Pass& one) const {
    if (one.kind == FORWARD) return message(0, one.stage + 1, one.micro_batch);
    return one.stage && one.kind != WEIGHTS ? message(1, one.stage - 1, one.micro_batch) : -1;
  }
  // Stage that reads what a pass makes on another rank; -1: none.
  int64_t receiver(const Pass& one) const {
    const int64_t reader = one.kind == FORWARD ? one.stage + 1 : one.stage - 1;
    const bool is_read = reader >= 0 && reader < stages && one.kind != WEIGHTS;
    return is_read && owners[reader] != owners[one.stage] ? reader : -1;
  }

  // Places of all passes in an order in which each follows what it waits for; fewer where they wait for each other.
  std::vector<int64_t> order() const {
    std::vector<int64_t> found, at(begins, begins + ranks);
    std::vector<std::vector<int64_t>> sent(ranks);  // by a turn, which may wait in its middle
    std::vector<char> is_there(2 * (stages + 1) * micro_batches, 0);
    found.reserve(begins[ranks]);
    for (size_t before = ~size_t{0}; before != found.size();) {
      before = found.size();
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (; at[rank] < begins[rank + 1]; ++at[rank]) {
          const int64_t reads = needed(passes[at[rank]]);
          if (reads >= 0 && !is_there[reads]) break;
          found.push_back(at[rank]);
          const Pass& one = passes[at[rank]];
          if (const int64_t makes = made(one); makes >= 0) {
            if (receiver(one) < 0) is_there[makes] = 1;
            else sent[rank].push_back(makes);
          }
          if (!one.ends_turn) continue;
          for (const int64_t makes : sent[rank]) is_there[makes] = 1;
          sent[rank].clear();
        }
      }
    }
    return found;
  }
};

// Times of `count` plans of one group, `ROWS` numbers a pass, message or link.
struct Group {
  const Lists& lists;
  const std::vector<int64_t>& order;
  const std::vector<char>& is_final;
  int64_t count;
  const double *seconds, *ending, *updates;  // rows of plans: of each kind and stage, of each stage, of each rank
  std::vector<double> ranks, links, ready;

  Group(const Lists& lists, const std::vector<int64_t>& order, const std::vector<char>& is_final)
      : lists(lists), order(order), is_final(is_final), ranks(lists.ranks * ROWS), links(lists.ranks * lists.ranks * ROWS),
        ready(2 * (lists.stages + 1) * lists.micro_batches * ROWS) {}

  void send(int64_t rank, const Pass& one, int64_t reader) {
    double* link = &links[(rank * lists.ranks + lists.owners[reader]) * ROWS];
    double* there = &ready[lists.made(one) * ROWS];
    const int64_t column = (KINDS + (one.kind != FORWARD)) * lists.stages + reader, width = (KINDS + 2) * lists.stages;
    for (int64_t row = 0; row < count; ++row) {
      link[row] = std::max(link[row], ranks[rank * ROWS + row]) + seconds[row * width + column];
      there[row] = link[row];
    }
  }

  // All passes of a step; `marks` are places of passes whose ends go into `marked`.
  void step(const int64_t* marks, double* marked) {
    const int64_t width = (KINDS + 2) * lists.stages;
    std::fill(links.begin(), links.end(), 0.0);
    std::vector<std::vector<int64_t>> sending(lists.ranks);
    for (const int64_t place : order) {
      const Pass& one = lists.passes[place];
      const int64_t rank = lists.owners[one.stage], reads = lists.needed(one), column = one.kind * lists.stages + one.stage;
      double* own = &ranks[rank * ROWS];
      for (int64_t row = 0; row < count; ++row) {
        const double read = reads < 0 ? 0.0 : ready[reads * ROWS + row];
        own[row] = std::max(own[row], read) + seconds[row * width + column];
      }
      if (is_final[place])
        for (int64_t row = 0; row < count; ++row) own[row] += ending[row * lists.stages + one.stage];
      for (int mark = 0; mark < 2; ++mark)
        if (marks[mark] == place) std::copy_n(own, ROWS, marked + mark * ROWS);
      if (lists.receiver(one) >= 0) sending[rank].push_back(place);
      else if (const int64_t makes = lists.made(one); makes >= 0) std::copy_n(own, ROWS, &ready[makes * ROWS]);
      if (!one.ends_turn) continue;
      for (const int64_t sent : sending[rank]) send(rank, lists.passes[sent], lists.receiver(lists.passes[sent]));
      sending[rank].clear();
    }
    for (int64_t rank = 0; rank < lists.ranks; ++rank)
      for (int64_t row = 0; row < count; ++row) ranks[rank * ROWS + row] += updates[row * lists.ranks + rank];
  }

  double latest(int64_t row) const {
    double found = ranks[row];
    for (int64_t rank = 1; rank < lists.ranks; ++rank) found = std::max(found, ranks[rank * ROWS + row]);
    return found;
  }
};

}  // namespace

extern "C" {

// Seconds of `steps` steps of each plan, the last one from the end of the one before, and between two backward passes
// of the last stage, numbers `marks` among those. Arrays have a row a plan. Returns 0 where passes wait for each other.
int list_seconds(int64_t ranks, int64_t stages, int64_t micro_batches, const int64_t* begins, const int32_t* passes,
                 const int32_t* owners, int64_t plans, const double* seconds, const double* ending,
                 const double* updates, int64_t steps, const int64_t* marks, double* step_s, double* round_s) {
  const Lists lists{ranks, stages, micro_batches, begins, reinterpret_cast<const Pass*>(passes), owners};
  const std::vector<int64_t> order = lists.order();
  if (int64_t(order.size()) != begins[ranks]) return 0;
  std::vector<char> is_final(begins[ranks], 0), is_seen(stages, 0);
  for (int64_t place = begins[ranks]; place-- > 0;) {
    const Pass& one = lists.passes[place];
    if (one.kind == FORWARD || is_seen[one.stage]) continue;
    is_final[place] = is_seen[one.stage] = 1;
  }
  int64_t places[2] = {-1, -1}, number = 0;
  for (int64_t place = 0; place < begins[ranks]; ++place) {
    const Pass& one = lists.passes[place];
    if (one.stage != stages - 1 || (one.kind != BACKWARD && one.kind != INPUTS)) continue;
    for (int mark = 0; mark < 2; ++mark)
      if (marks[mark] == number) places[mark] = place;
    ++number;
  }
  Group group(lists, order, is_final);
  for (int64_t begin = 0; begin < plans; begin += ROWS) {
    double before[ROWS] = {}, marked[2 * ROWS] = {};
    group.count = std::min(ROWS, plans - begin);
    group.seconds = seconds + begin * (KINDS + 2) * stages;
    group.ending = ending + begin * stages;
    group.updates = updates + begin * ranks;
    std::fill(group.ranks.begin(), group.ranks.end(), 0.0);
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t row = 0; row < group.count; ++row) before[row] = group.latest(row);
      group.step(places, marked);
    }
    for (int64_t row = 0; row < group.count; ++row) {
      step_s[begin + row] = group.latest(row) - before[row];
      round_s[begin + row] = marked[row] - marked[ROWS + row];
    }
  }
  return 1;
}

// Most bytes of results on each rank of each plan. `live` has for each plan and stage what a micro-batch saves, what
// waits between both parts of its backward pass, what lives while one of its passes runs, and what it hands on; of the
// last stage `kept` micro-batches keep that.
void list_bytes(int64_t ranks, int64_t stages, int64_t micro_batches, const int64_t* begins, const int32_t* passes,
                const int32_t* owners, int64_t plans, const double* live, int64_t kept, double* most) {
  const Lists lists{ranks, stages, micro_batches, begins, reinterpret_cast<const Pass*>(passes), owners};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> own;
    for (int64_t stage = 0; stage < stages; ++stage)
      if (owners[stage] == rank) own.push_back(stage);
    const bool has_last = !own.empty() && own.back() == stages - 1;
    std::vector<int64_t> saved(own.size(), 0), pending(own.size(), 0);
    auto look = [&](const Pass& one) {
      const bool runs_last = size_t(one.place) + 1 == own.size();
      const int64_t left = has_last ? std::max<int64_t>(kept - saved.back() - runs_last, 0) : 0;
      for (int64_t plan = 0; plan < plans; ++plan) {
        const double* of = live + plan * stages * 4;
        double held = 0.0, waits = 0.0;
        for (size_t place = 0; place < own.size(); ++place) {
          held += of[own[place] * 4] * double(saved[place]);
          waits += of[own[place] * 4 + 1] * double(pending[place]);
        }
        held = held + waits + of[one.stage * 4 + 2] + double(left) * of[own.back() * 4 + 3];
        most[plan * ranks + rank] = std::max(most[plan * ranks + rank], held);
      }
    };
    for (int64_t place = begins[rank]; place < begins[rank + 1]; ++place) {
      const Pass& one = lists.passes[place];
      if (one.kind == FORWARD) {
        look(one);
        ++saved[one.place];
        continue;
      }
      --saved[one.place];
      look(one);
      pending[one.place] -= one.kind == WEIGHTS;
      if (one.kind == INPUTS) {
        ++saved[one.place];
        ++pending[one.place];
      }
    }
  }
}
}
