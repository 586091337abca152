// Columns of tasks, read from the Python objects. It calls Python's stable interface, whose functions are in the process
// that loads this library; its headers are not needed, and one library serves every Python. The caller holds the lock of
// the interpreter. Where a function fails, Python's own error is set.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "pages.h"

extern "C" {
struct _object;
using PyObject = _object;
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
intptr_t PyObject_Hash(PyObject*);
int PyObject_RichCompareBool(PyObject*, PyObject*, int);
int PyCallable_Check(PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyErr_Occurred();
void PyErr_Clear();
PyObject* PyList_GetItem(PyObject*, intptr_t);
int PyList_Append(PyObject*, PyObject*);
PyObject* PySequence_Tuple(PyObject*);
intptr_t PyTuple_Size(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, intptr_t);
PyObject* PyUnicode_InternFromString(const char*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
}

namespace python {

constexpr int EQUAL = 2;  // of a comparison
struct Failed {};         // Python's error is set

template <class Result>
Result checked(Result result) {
  if (!result) throw Failed{};
  return result;
}

// Whether a function went well.
template <class Function>
bool called(Function function) {
  try {
    function();
  } catch (const Failed&) {
    return false;
  }
  return true;
}

// A reference that is given back.
class Object {
 public:
  explicit Object(PyObject* owned) : object_(owned) {}
  Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() {
    if (object_) Py_DecRef(object_);
  }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

inline Object shared(PyObject* borrowed) {
  Py_IncRef(borrowed);
  return Object(borrowed);
}

// Fetch an object that is about to be read: it may begin at the end of a line of the cache.
inline void expect(PyObject* object) {
  __builtin_prefetch(object);
  __builtin_prefetch(reinterpret_cast<char*>(object) + 40);
}

enum Field { KEY, DURATION, RESOURCES, AFTER, PRIORITY, GAP, FLOW, FIELDS };

// Reads the fields of tasks: by their places in memory where a task is of the very class that has them there, else by
// their names.
class FieldReader {
 public:
  // `offsets`: in bytes, of the class and of each field in an object of `kind`; null where they are not known.
  FieldReader(PyObject* kind, const int64_t* offsets) : kind_(kind), offsets_(offsets) {
    for (const char* name : {"key", "duration", "resources", "after", "priority", "gap_s", "flow"}) {
      names_.emplace_back(checked(PyUnicode_InternFromString(name)));
    }
  }

  // Fetch what a task refers to.
  void expect(PyObject* task) const {
    if (!is_known(task)) return;
    for (const Field field : {KEY, DURATION, RESOURCES, AFTER}) python::expect(at(task, field));
  }
  // They are there as long as the task is, and no other one is read.
  PyObject* const* of(PyObject* task) {
    bool is_whole = is_known(task);
    for (int field = 0; is_whole && field < FIELDS; ++field) {
      found_[field] = at(task, static_cast<Field>(field));
      is_whole = found_[field];  // who deletes a field has a task without it
    }
    if (is_whole) return found_;
    own_.clear();
    for (const Object& name : names_) own_.emplace_back(checked(PyObject_GetAttr(task, name.get())));
    for (int field = 0; field < FIELDS; ++field) found_[field] = own_[field].get();
    return found_;
  }

 private:
  PyObject* const kind_;
  const int64_t* const offsets_;
  std::vector<Object> names_, own_;
  PyObject* found_[FIELDS];

  static PyObject* loaded(PyObject* object, int64_t offset) {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
  }
  bool is_known(PyObject* task) const { return offsets_ && loaded(task, offsets_[0]) == kind_; }
  PyObject* at(PyObject* task, Field field) const { return loaded(task, offsets_[1 + field]); }
};

// As a float; not a number where it is something to call and `may_be_asked`.
inline double number_of(PyObject* object, bool may_be_asked = false) {
  const double value = PyFloat_AsDouble(object);
  if (value != -1.0 || !PyErr_Occurred()) return value;
  if (!may_be_asked || !PyCallable_Check(object)) throw Failed{};
  PyErr_Clear();
  return std::nan("");
}

// A number of each task; the one before is remembered, since most tasks share the very object.
class Number {
 public:
  double of(PyObject* object) {
    if (object != last_.get()) {
      value_ = number_of(object);
      last_ = shared(object);
    }
    return value_;
  }

 private:
  Object last_{nullptr};
  double value_ = 0.0;
};

inline uint32_t hash_of(PyObject* key) {
  const intptr_t hash = PyObject_Hash(key);
  if (hash == -1) throw Failed{};
  return static_cast<size_t>(hash) * 0x9E3779B97F4A7C15u >> 32;  // small numbers follow each other
}

// Keys -> their numbers, in the order in which they were given; keys are equal as those of a dict are.
class Numbers {
 public:
  explicit Numbers(size_t most) {
    while (places_ < 2 * most) places_ *= 2, --shift_;
    slots_.assign(places_, {0, NOBODY});
    keys_.reserve(most), hashes_.reserve(most);
  }

  static constexpr int32_t NOBODY = -1;
  int32_t size() const { return static_cast<int32_t>(keys_.size()); }
  PyObject* key(int32_t number) const { return keys_[number].get(); }

  // Its number, a new one where it is new.
  int32_t add(PyObject* key, uint32_t hash) {
    if (2 * (keys_.size() + 1) > places_) grow();
    Slot& found = slots_[place(hash, [&] { return key; })];
    if (found.number == NOBODY) {
      found = {hash, size()};
      push(key, hash);
    }
    return found.number;
  }
  // Give it the next number; it is found once all are indexed.
  void push(PyObject* key, uint32_t hash) {
    keys_.push_back(shared(key));
    hashes_.push_back(hash);
  }
  // Return the first number whose key was there before, or NOBODY; `at`: the number that is looked at.
  int32_t index(int64_t& at) {
    // One part of the table after the other: places far from each other take long to reach.
    std::vector<size_t> ends(PARTS + 1);
    for (const uint32_t hash : hashes_) ++ends[hash / (UINT32_MAX / PARTS + 1) + 1];
    for (size_t part = 0; part < PARTS; ++part) ends[part + 1] += ends[part];
    Array<Slot> ordered(hashes_.size());
    for (int32_t number = 0; number < size(); ++number) {
      const uint32_t hash = hashes_[number];
      ordered[ends[hash / (UINT32_MAX / PARTS + 1)]++] = {hash, number};
    }
    int32_t twice = NOBODY;
    for (const Slot& one : ordered) {
      at = one.number;
      Slot& found = slots_[place(one.hash, [&] { return key(one.number); })];
      if (found.number == NOBODY) found = one;
      else if (twice == NOBODY || one.number < twice) twice = one.number;
    }
    return twice;
  }

  bool is(int32_t number, PyObject* other, uint32_t hash) const { return hashes_[number] == hash && same(number, other); }
  // Fetch where a key of this hash would be.
  void expect(uint32_t hash) const { __builtin_prefetch(&slots_[hash >> shift_]); }
  int32_t find(PyObject* key, uint32_t hash) const { return slots_[place(hash, [&] { return key; })].number; }

 private:
  struct Slot {
    uint32_t hash;
    int32_t number;
  };
  static constexpr size_t PARTS = 256;
  size_t places_ = 16;
  int shift_ = 28;
  Array<Slot> slots_;
  Array<Object> keys_;
  Array<uint32_t> hashes_;

  bool same(int32_t number, PyObject* other) const {
    PyObject* known = key(number);
    const int same = known == other ? 1 : PyObject_RichCompareBool(known, other, EQUAL);
    if (same < 0) throw Failed{};
    return same;
  }
  // Where a key is, or would be.
  template <class Key>
  size_t place(uint32_t hash, Key key) const {
    for (size_t place = hash >> shift_;; place = (place + 1) & (places_ - 1)) {
      const Slot& slot = slots_[place];
      if (slot.number == NOBODY || (slot.hash == hash && same(slot.number, key()))) return place;
    }
  }
  void grow() {
    places_ *= 2, --shift_;
    slots_.assign(places_, {0, NOBODY});
    for (int32_t number = 0; number < size(); ++number) {
      size_t place = hashes_[number] >> shift_;
      while (slots_[place].number != NOBODY) place = (place + 1) & (places_ - 1);
      slots_[place] = {hashes_[number], number};
    }
  }
};

}  // namespace python

// A column that is written from the first element on that is not like those before.
template <class One>
class LazyColumn {
 public:
  explicit LazyColumn(One* all) : all_(all) {}
  bool varies() const { return varies_; }
  void set(int64_t at, One value) {
    if (!varies_ && at && value != *all_) {
      std::fill(all_, all_ + at, *all_);
      varies_ = true;
    }
    if (varies_ || !at) all_[at] = value;
  }

 private:
  One* const all_;
  bool varies_ = false;
};

// Numbers of tuples of resources, each of which is there once.
class Sets {
 public:
  int32_t number_of(PyObject* set) {
    int32_t& seen = seen_[reinterpret_cast<uintptr_t>(set) / 16 % SEEN];
    if (seen < known_.size() && known_.key(seen) == set) return seen;
    return seen = known_.add(set, python::hash_of(set));
  }
  void list(PyObject* all) const {
    for (int32_t number = 0; number < known_.size(); ++number) {
      if (PyList_Append(all, known_.key(number)) < 0) throw python::Failed{};
    }
  }

 private:
  static constexpr size_t SEEN = 64;
  python::Numbers known_{8};
  int32_t seen_[SEEN] = {};  // for tasks that share the very tuple
};

// Guesses the number of an input: most inputs were given as long before their task as those of the tasks before.
class Guesses {
 public:
  explicit Guesses(const python::Numbers& numbers) : numbers_(numbers) {}
  // NOBODY where none is right.
  int32_t of(int64_t at, PyObject* input, uint32_t hash) {
    if (wrong_ > right_ + PATIENCE) return python::Numbers::NOBODY;
    for (const int64_t distance : distances_) {
      const int64_t number = at - distance;
      if (number < 0 || number >= numbers_.size() || !numbers_.is(number, input, hash)) continue;
      ++right_;
      return static_cast<int32_t>(number);
    }
    ++wrong_;
    return python::Numbers::NOBODY;
  }
  void learn(int64_t distance) {
    if (std::find(distances_, distances_ + MANY, distance) == distances_ + MANY) distances_[next_++ % MANY] = distance;
  }

 private:
  static constexpr size_t MANY = 4;
  static constexpr int64_t PATIENCE = 4096;
  const python::Numbers& numbers_;
  int64_t distances_[MANY] = {1, 1, 1, 1};
  size_t next_ = 0;
  int64_t right_ = 0, wrong_ = 0;
};

// What is wrong with tasks: two have a key, or an input is no task.
struct Fault {
  int64_t at = -1;     // number of the task with the key that was there before, or with that input; negative: all is well
  int64_t place = -1;  // of the input
};

// Reads tasks twice: first their fields, then the numbers of their inputs.
class TaskReader {
 public:
  explicit TaskReader(int64_t many) : many_(many), numbers_(static_cast<size_t>(many)) {
    inputs_.reserve(static_cast<size_t>(many));
  }

  int64_t at = 0;  // number of the task that is read

  // Arrays have an element a task; of `gap_s` and `priority` one is all where all tasks have the same, and `varies` says
  // whether they have. `sends`: 1 for a task with a flow; `sets`: a list, to which the resources of tasks are added, each
  // tuple once.
  Fault read(PyObject* tasks, PyObject* none, PyObject* kind, const int64_t* offsets, double* duration_s, double* gap_s,
             double* priority, int32_t* resources, int8_t* sends, int64_t* begins, int8_t* varies, PyObject* sets) {
    python::FieldReader fields(kind, offsets);
    python::Number duration, gap, order;
    LazyColumn<double> gaps(gap_s), orders(priority);
    Sets known_sets;
    begins[0] = 0;
    for (at = 0; at < many_; ++at) {
      if (at + AHEAD < many_) python::expect(python::checked(PyList_GetItem(tasks, at + AHEAD)));
      if (at + AHEAD / 2 < many_) fields.expect(python::checked(PyList_GetItem(tasks, at + AHEAD / 2)));
      const python::Object held = python::shared(python::checked(PyList_GetItem(tasks, at)));
      PyObject* const* task = fields.of(held.get());
      numbers_.push(task[python::KEY], python::hash_of(task[python::KEY]));
      inputs_.emplace_back(python::checked(PySequence_Tuple(task[python::AFTER])));
      begins[at + 1] = begins[at] + PyTuple_Size(inputs_.back().get());
      duration_s[at] = python::number_of(task[python::DURATION], true);
      gaps.set(at, gap.of(task[python::GAP]));
      orders.set(at, order.of(task[python::PRIORITY]));
      sends[at] = task[python::FLOW] != none;
      resources[at] = known_sets.number_of(task[python::RESOURCES]);
    }
    varies[0] = gaps.varies(), varies[1] = orders.varies();
    known_sets.list(sets);
    return {numbers_.index(at)};
  }

  // The numbers of the inputs of all tasks, in their order.
  Fault read_inputs(int32_t* befores) {
    Guesses guesses(numbers_);
    std::vector<Input> inputs;
    for (int64_t first = 0; first < many_; first += AHEAD) {
      const int64_t end = std::min(many_, first + AHEAD);
      inputs.clear();
      for (at = first; at < end; ++at) {
        const int64_t count = PyTuple_Size(inputs_[at].get());
        for (int64_t place = 0; place < count; ++place) {
          inputs.push_back({at, PyTuple_GetItem(inputs_[at].get(), place)});
          python::expect(inputs.back().key);
        }
        if (at + AHEAD < many_) python::expect(inputs_[at + AHEAD].get());
      }
      for (Input& one : inputs) {
        at = one.at;
        one.hash = python::hash_of(one.key);
        one.number = guesses.of(at, one.key, one.hash);
        if (one.number == python::Numbers::NOBODY) numbers_.expect(one.hash);
      }
      const Input* input = inputs.data();
      for (at = first; at < end; ++at) {
        const python::Object own = std::move(inputs_[at]);
        const int64_t count = PyTuple_Size(own.get());
        for (int64_t place = 0; place < count; ++place, ++input) {
          *befores = input->number;
          if (*befores == python::Numbers::NOBODY) {
            *befores = numbers_.find(input->key, input->hash);
            if (*befores == python::Numbers::NOBODY) return {at, place};
            guesses.learn(at - *befores);
          }
          ++befores;
        }
      }
    }
    return {};
  }

 private:
  struct Input {
    int64_t at;
    PyObject* key;
    uint32_t hash = 0;
    int32_t number = python::Numbers::NOBODY;
  };
  static constexpr int64_t AHEAD = 64;  // so many tasks are fetched before they are needed
  const int64_t many_;
  python::Numbers numbers_;
  Array<python::Object> inputs_;  // a tuple each
};
