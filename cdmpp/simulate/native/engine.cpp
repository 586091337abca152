// The event engine: a task starts when its inputs have ended and it is first in the queue of each of its resources.
//
// `cdmpp/simulate/engine.py` gives it tasks by number. It runs until it needs an answer, and goes on with that.

#include <cmath>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "heap.h"
#include "pages.h"
#include "shared_links.h"
#include "task_columns.h"
#include "tasks.h"

namespace {

enum Kind : int32_t { END, ARRIVED, FREE, SENDS };  // events of a task: it ends; its flow does; its gap is over; it sends
enum Status : int32_t { DONE, ENDED, ASKS, STUCK, NO_RATE };
constexpr int32_t NONE = -1;

struct Run {
  double start_s = 0.0;  // until it starts: it waited for its cause until then
  double end_s = std::nan("");
  int32_t cause = NONE;
  int32_t missing : 31 = 0;  // inputs that have not ended
  uint32_t is_fresh : 1 = false;
  int32_t first = NONE, last = NONE;  // of the edges to its successors
};

// What is known besides of a task that will be forgotten, so that another one takes its slot.
struct Life {
  int64_t number;
  int32_t uses = 1;  // of its slot: until it is over, by causes, and by resources that it freed last
  bool is_known = true;
};

struct Edge {
  int32_t run, next;
};

struct Waiting {
  double priority, ready_s;
  int64_t number;
  int32_t run;
  // A total order, so that no two tasks wait for each other.
  bool operator<(const Waiting& other) const {
    if (priority != other.priority) return priority < other.priority;
    if (ready_s != other.ready_s) return ready_s < other.ready_s;
    return number < other.number;
  }
};

struct Event {
  double time_s;
  int64_t number;
  int32_t kind, run;
  bool operator<(const Event& other) const {
    if (time_s != other.time_s) return time_s < other.time_s;
    if (kind != other.kind) return kind < other.kind;
    return number < other.number;
  }
};

struct Resource {
  Heap<Waiting> queue;
  bool is_held = false;
  double freed_s = 0.0;
  int32_t before = NONE;  // the run that held it last
};

}  // namespace

// What Python reads whenever it stops.
struct State {
  double now_s, start_s;  // start: of the run that ended
  int64_t count;          // tasks so far; of a circle those in it
  int32_t run;            // that ended, asks, has no rate, or is the first one of a circle
  int32_t cause;          // of the run that ended
};

class Engine {
 public:
  Engine(int64_t links, const double* rates, bool keeps, bool reports)
      : links_(links, rates), keeps_(keeps), reports_(reports) {}

  State state{0.0, 0.0, 0, NONE, NONE};

  int32_t add_set(int64_t count, const int32_t* numbers) {
    sets_.emplace_back(numbers, numbers + count);
    for (const int32_t number : sets_.back()) {
      if (static_cast<size_t>(number) >= resources_.size()) resources_.resize(number + 1);
    }
    return static_cast<int32_t>(sets_.size()) - 1;
  }
  // A negative number is a link without a rate.
  int32_t add_way(int64_t count, const int32_t* numbers) {
    Way& way = ways_.emplace_back();
    for (int64_t place = 0; place < count; ++place) {
      if (numbers[place] < 0) {
        way.clear();
        break;
      }
      way.push_back(links_.link(numbers[place]));
    }
    return static_cast<int32_t>(ways_.size()) - 1;
  }

  // The first tasks, all of them linked. Where tasks are kept, their columns have to be there until the end.
  void begin(int32_t count, const Columns& columns, const int64_t* begins, const int32_t* befores) {
    edges_.reserve(begins[count] - begins[0]);
    if (keeps_) {
      tasks_.begin(count, columns);
      runs_.resize(count);
      started_.reserve(count);
      state.count = count;
    } else {
      Tasks first;
      first.begin(count, columns);
      for (int32_t slot = 0; slot < count; ++slot) add(first[slot]);
    }
    for (int32_t slot = 0; slot < count; ++slot) link(slot, begins[slot + 1] - begins[slot], befores + begins[slot]);
  }
  // Return its slot, which is its number where all tasks are kept.
  int32_t add(const Task& task) {
    int32_t slot = tasks_.size();
    if (resting_.empty()) {
      tasks_.add(task);
      runs_.emplace_back();
      if (!keeps_) lives_.emplace_back();
    } else {
      slot = resting_.back();
      resting_.pop_back();
      tasks_.set(slot, task);
      runs_[slot] = Run{};
    }
    if (!keeps_) lives_[slot] = {state.count};
    ++state.count;
    return slot;
  }
  // Let a task wait for others, or have no more to wait for.
  void link(int32_t slot, int64_t count, const int32_t* befores) {
    Run& run = runs_[slot];
    for (int64_t place = 0; place < count; ++place) {
      Run& before = runs_[befores[place]];
      if (!std::isnan(before.end_s) || (before.last != NONE && edges_[before.last].run == slot)) continue;
      const int32_t edge = new_edge(slot);
      (before.first == NONE ? before.first : edges_[before.last].next) = edge;
      before.last = edge;
      ++run.missing;
    }
    if (!run.missing) wait(slot);
  }

  Status go_on() {
    if (ended_ != NONE) after_end(std::exchange(ended_, NONE));
    while (true) {
      if (!is_ending_) {
        if (!start_fresh()) return ASKS;
        const double sent_s = links_.flows ? links_.next_s(state.now_s) : NEVER;
        const double now_s = events_.empty() ? sent_s : std::min(events_.top().time_s, sent_s);
        if (now_s == NEVER) return is_stuck() ? STUCK : DONE;
        state.now_s = now_s;
        if (sent_s == now_s) {
          const std::vector<int32_t>& arrived = links_.ended(now_s);
          if (arrived.size() == 1 && (events_.empty() || events_.top().time_s != now_s)) {  // so it is mostly
            if (end(arrived[0])) return ENDED;
            continue;
          }
          for (const int32_t slot : arrived) events_.push({now_s, number(slot), ARRIVED, slot});
        }
        is_ending_ = true;
      }
      while (!events_.empty() && events_.top().time_s == state.now_s) {  // what ends together ends before any start
        const Event event = events_.pop();
        if (event.kind == SENDS) {
          if (!send(event.run)) return NO_RATE;
        } else if (event.kind == FREE) {
          free(event.run);
        } else if (end(event.run)) {
          return ENDED;
        }
      }
      is_ending_ = false;
    }
  }
  // The duration of the task that asks.
  void answer(double seconds) { schedule(state.run, seconds); }

  void spans(int32_t* order, double* start_s, double* end_s, int32_t* cause) const {
    std::copy(started_.begin(), started_.end(), order);
    for (const Run& run : runs_) *start_s++ = run.start_s, *end_s++ = run.end_s, *cause++ = run.cause;
  }

 private:
  SharedLinks links_;
  const bool keeps_, reports_;
  Tasks tasks_;
  Array<Run> runs_;
  Array<Life> lives_;  // where tasks are not kept
  Array<Edge> edges_;
  std::vector<int32_t> resting_, edges_at_rest_;  // slots of tasks that are over, where they are not kept
  Array<int32_t> started_;                        // in the order of their starts
  std::vector<std::vector<int32_t>> sets_;
  std::deque<Way> ways_;
  std::vector<Resource> resources_;
  std::vector<std::pair<int64_t, int32_t>> fresh_, starting_;  // number and slot of tasks that may start now
  size_t starts_ = 0;
  Heap<Event> events_;
  bool is_ending_ = false;
  int32_t ended_ = NONE;

  int64_t number(int32_t slot) const { return keeps_ ? slot : lives_[slot].number; }
  int32_t new_edge(int32_t slot) {
    if (edges_at_rest_.empty()) {
      edges_.push_back({slot, NONE});
      return static_cast<int32_t>(edges_.size()) - 1;
    }
    const int32_t edge = edges_at_rest_.back();
    edges_at_rest_.pop_back();
    edges_[edge] = {slot, NONE};
    return edge;
  }

  void wait(int32_t slot) {
    const Task task = tasks_[slot];
    for (const int32_t resource : sets_[task.resources]) {
      resources_[resource].queue.push({task.priority, state.now_s, number(slot), slot});
    }
    be_fresh(slot);
  }
  void be_fresh(int32_t slot) {
    Run& run = runs_[slot];
    if (!run.is_fresh) fresh_.emplace_back(number(slot), slot);
    run.is_fresh = true;
  }

  // Start what may start; false where a task asks for its duration.
  bool start_fresh() {
    if (starts_ == starting_.size()) {
      starting_.clear();
      starts_ = 0;
      starting_.swap(fresh_);
      if (starting_.size() > 1) std::sort(starting_.begin(), starting_.end());
    }
    while (starts_ < starting_.size()) {
      const int32_t slot = starting_[starts_++].second;
      runs_[slot].is_fresh = false;
      if (!start(slot)) return false;
    }
    return true;
  }
  // Start a task where it is first in all its queues and nothing is held; false where it asks for its duration.
  bool start(int32_t slot) {
    Run& run = runs_[slot];
    const Task task = tasks_[slot];
    const std::vector<int32_t>& own = sets_[task.resources];
    for (const int32_t number : own) {
      const Resource& resource = resources_[number];
      if (resource.is_held || resource.queue.top().run != slot) return true;
    }
    for (const int32_t number : own) {
      Resource& resource = resources_[number];
      resource.queue.pop();
      resource.is_held = true;
      if (resource.freed_s > run.start_s) {
        run.start_s = resource.freed_s;
        be_cause(run, resource.before);
      }
    }
    run.start_s = state.now_s;
    if (keeps_) started_.push_back(slot);
    if (std::isnan(task.duration_s)) {
      state.run = slot;
      return false;
    }
    schedule(slot, task.duration_s);
    return true;
  }
  void schedule(int32_t slot, double seconds) {
    events_.push({state.now_s + seconds, number(slot), tasks_[slot].way == NONE ? END : SENDS, slot});
  }

  bool send(int32_t slot) {
    const Task task = tasks_[slot];
    const Way& way = ways_[task.way];
    if (way.empty()) {
      state.run = slot;
      return false;
    }
    links_.join(slot, task.bytes, task.count, way, state.now_s);
    return true;
  }

  // True where Python hears of it before all else that follows.
  bool end(int32_t slot) {
    Run& run = runs_[slot];
    run.end_s = state.now_s;
    if (!keeps_) lives_[slot].is_known = false;
    for (int32_t place = run.first; place != NONE;) {
      const Edge edge = edges_[place];
      if (reports_) edges_at_rest_.push_back(place);
      place = edge.next;
      Run& successor = runs_[edge.run];
      be_cause(successor, slot);
      successor.start_s = state.now_s;
      if (!--successor.missing) wait(edge.run);
    }
    run.first = run.last = NONE;
    if (!reports_) {
      after_end(slot);
      return false;
    }
    ended_ = state.run = slot;
    state.start_s = run.start_s, state.cause = run.cause;
    return true;
  }
  void after_end(int32_t slot) {
    if (const double gap_s = tasks_[slot].gap_s) events_.push({state.now_s + gap_s, number(slot), FREE, slot});
    else free(slot);
  }
  void free(int32_t slot) {
    for (const int32_t number : sets_[tasks_[slot].resources]) {
      Resource& resource = resources_[number];
      resource.is_held = false;
      resource.freed_s = state.now_s;
      use(slot);
      release(std::exchange(resource.before, slot));
      if (!resource.queue.empty()) be_fresh(resource.queue.top().run);
    }
    release(slot);
  }

  void be_cause(Run& run, int32_t slot) {
    use(slot);
    release(std::exchange(run.cause, slot));
  }
  void use(int32_t slot) {
    if (!keeps_ && slot != NONE) ++lives_[slot].uses;
  }
  void release(int32_t slot) {
    while (!keeps_ && slot != NONE && !--lives_[slot].uses) {
      resting_.push_back(slot);
      slot = std::exchange(runs_[slot].cause, NONE);  // it was of use to this one
    }
  }

  // Whether any task has not ended: how many, and which is first.
  bool is_stuck() {
    int64_t count = 0;
    state.run = NONE;
    for (int32_t slot = 0; slot < tasks_.size(); ++slot) {
      if (!std::isnan(runs_[slot].end_s) || !(keeps_ || lives_[slot].is_known)) continue;
      if (!count++ || number(slot) < number(state.run)) state.run = slot;
    }
    if (count) state.count = count;
    return count;
  }
};

extern "C" {

Engine* engine_new(int64_t links, const double* rates, int32_t keeps, int32_t reports) {
  return new Engine(links, rates, keeps, reports);
}
void engine_delete(Engine* engine) { delete engine; }
const State* engine_state(const Engine* engine) { return &engine->state; }
int32_t engine_set(Engine* engine, int64_t count, const int32_t* numbers) { return engine->add_set(count, numbers); }
int32_t engine_way(Engine* engine, int64_t count, const int32_t* numbers) { return engine->add_way(count, numbers); }

// A task that `engine_link` follows.
int32_t engine_add(Engine* engine, double duration_s, double gap_s, double priority, int32_t resources, int32_t way,
                   double bytes, int64_t count) {
  return engine->add({duration_s, gap_s, priority, bytes, count, resources, way});
}
void engine_link(Engine* engine, int32_t slot, int64_t count, const int32_t* befores) {
  engine->link(slot, count, befores);
}
// The first tasks, all of them linked; `strides`: of all columns, in elements, 0 where it has one for all.
void engine_begin(Engine* engine, int64_t tasks, const double* duration_s, const double* gap_s, const double* priority,
                  const int32_t* resources, const int32_t* way, const double* bytes, const int64_t* count,
                  const int64_t* strides, const int64_t* begins, const int32_t* befores) {
  const Columns columns = {{duration_s, strides[0]}, {gap_s, strides[1]}, {priority, strides[2]},
                           {resources, strides[3]},  {way, strides[4]},   {bytes, strides[5]},
                           {count, strides[6]}};
  engine->begin(static_cast<int32_t>(tasks), columns, begins, befores);
}

int32_t engine_go_on(Engine* engine) { return engine->go_on(); }
void engine_answer(Engine* engine, double seconds) { engine->answer(seconds); }
void engine_spans(const Engine* engine, int32_t* order, double* start_s, double* end_s, int32_t* cause) {
  engine->spans(order, start_s, end_s, cause);
}


// Readers of the tasks of a list, called with the interpreter's lock held. They return 1, or 0 where Python's error is
// set.
TaskReader* reader_new(int64_t tasks) { return new TaskReader(tasks); }
void reader_delete(TaskReader* reader) { delete reader; }
int64_t reader_at(const TaskReader* reader) { return reader->at; }
int32_t reader_read(TaskReader* reader, PyObject* tasks, PyObject* none, PyObject* kind, const int64_t* offsets,
                    double* duration_s, double* gap_s, double* priority, int32_t* resources, int8_t* sends,
                    int64_t* begins, int8_t* varies, PyObject* sets, Fault* fault) {
  return python::called([&] {
    *fault = reader->read(tasks, none, kind, offsets, duration_s, gap_s, priority, resources, sends, begins, varies,
                          sets);
  });
}
int32_t reader_read_inputs(TaskReader* reader, int32_t* befores, Fault* fault) {
  return python::called([&] { *fault = reader->read_inputs(befores); });
}

}  // extern "C"
