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

class Attribute {
 public:
  explicit Attribute(const char* name) : name_(checked(PyUnicode_InternFromString(name))) {}
  Object of(PyObject* object) const { return Object(checked(PyObject_GetAttr(object, name_.get()))); }

 private:
  Object name_;
};

// A number of each object, as a float; the one before is remembered, since most tasks share it.
class Number {
 public:
  explicit Number(const char* name) : attribute_(name) {}
  // Not a number where it is something to call and `may_be_asked`.
  double of(PyObject* object, bool may_be_asked = false) {
    Object found = attribute_.of(object);
    if (found.get() != last_.get()) {
      value_ = PyFloat_AsDouble(found.get());
      if (value_ == -1.0 && PyErr_Occurred()) {
        if (!may_be_asked || !PyCallable_Check(found.get())) throw Failed{};
        PyErr_Clear();
        value_ = std::nan("");
      }
      last_ = std::move(found);
    }
    return value_;
  }

 private:
  Attribute attribute_;
  Object last_{nullptr};
  double value_ = 0.0;
};

inline size_t hash_of(PyObject* key) {
  const intptr_t hash = PyObject_Hash(key);
  if (hash == -1) throw Failed{};
  return static_cast<size_t>(hash) * 0x9E3779B97F4A7C15u;  // small numbers follow each other
}

// Keys -> their numbers, in the order in which they were given; keys are equal as those of a dict are.
class Numbers {
 public:
  explicit Numbers(size_t most) {
    while (places_ < 2 * most) places_ *= 2, --shift_;
    slots_.assign(places_, {0, NOBODY});
    keys_.reserve(most);
  }

  static constexpr int32_t NOBODY = -1;
  void expect(size_t hash) const { __builtin_prefetch(&slots_[hash >> shift_]); }
  int32_t find(PyObject* key, size_t hash) const { return slot(key, hash).number; }
  // Its number, and whether it is new.
  std::pair<int32_t, bool> add(Object key, size_t hash) {
    if (2 * (keys_.size() + 1) > places_) grow();
    Slot& found = const_cast<Slot&>(slot(key.get(), hash));
    if (found.number != NOBODY) return {found.number, false};
    found = {static_cast<uint32_t>(hash), static_cast<int32_t>(keys_.size())};
    keys_.push_back(std::move(key));
    return {found.number, true};
  }
  const Array<Object>& keys() const { return keys_; }

 private:
  struct Slot {
    uint32_t hash;  // its lower half
    int32_t number;
  };
  size_t places_ = 16;
  int shift_ = 60;
  Array<Slot> slots_;
  Array<Object> keys_;

  // Where it is, or would be.
  const Slot& slot(PyObject* key, size_t hash) const {
    for (size_t place = hash >> shift_;; place = (place + 1) & (places_ - 1)) {
      const Slot& slot = slots_[place];
      if (slot.number == NOBODY) return slot;
      if (slot.hash != static_cast<uint32_t>(hash)) continue;
      PyObject* known = keys_[slot.number].get();
      const int same = known == key ? 1 : PyObject_RichCompareBool(known, key, EQUAL);
      if (same < 0) throw Failed{};
      if (same) return slot;
    }
  }
  void grow() {
    places_ *= 2, --shift_;
    slots_.assign(places_, {0, NOBODY});
    for (size_t number = 0; number < keys_.size(); ++number) {
      const size_t hash = hash_of(keys_[number].get());
      size_t place = hash >> shift_;
      while (slots_[place].number != NOBODY) place = (place + 1) & (places_ - 1);
      slots_[place] = {static_cast<uint32_t>(hash), static_cast<int32_t>(number)};
    }
  }
};

}  // namespace python

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

  // Arrays have an element a task. `sends`: 1 for a task with a flow; `sets`: a list, to which the resources of tasks are
  // added, each tuple once.
  Fault read(PyObject* tasks, PyObject* none, double* duration_s, double* gap_s, double* priority, int32_t* resources,
             int8_t* sends, int64_t* begins, PyObject* sets) {
    const python::Attribute key("key"), after("after"), held("resources"), flow("flow");
    python::Number duration("duration"), gap("gap_s"), order("priority");
    python::Numbers known_sets(8);
    std::vector<python::Object> keys;
    std::vector<size_t> hashes;
    begins[0] = 0;
    for (int64_t first = 0; first < many_; first += AHEAD) {
      const int64_t end = std::min(many_, first + AHEAD);
      keys.clear(), hashes.clear();
      for (int64_t number = first; number < end; ++number) {
        PyObject* task = python::checked(PyList_GetItem(tasks, number));
        keys.push_back(key.of(task));
        hashes.push_back(python::hash_of(keys.back().get()));
        numbers_.expect(hashes.back());
        inputs_.emplace_back(python::checked(PySequence_Tuple(after.of(task).get())));
        begins[number + 1] = begins[number] + PyTuple_Size(inputs_.back().get());
        duration_s[number] = duration.of(task, true);
        gap_s[number] = gap.of(task);
        priority[number] = order.of(task);
        sends[number] = flow.of(task).get() != none;
        python::Object set = held.of(task);
        const size_t hash = python::hash_of(set.get());
        resources[number] = known_sets.add(std::move(set), hash).first;
      }
      for (int64_t number = first; number < end; ++number) {
        if (!numbers_.add(std::move(keys[number - first]), hashes[number - first]).second) return {number};
      }
    }
    for (const python::Object& set : known_sets.keys()) {
      if (PyList_Append(sets, set.get()) < 0) throw python::Failed{};
    }
    return {};
  }

  // The numbers of the inputs of all tasks, in their order.
  Fault read_inputs(int32_t* befores) {
    std::vector<size_t> hashes;
    for (int64_t first = 0; first < many_; first += AHEAD) {
      const int64_t end = std::min(many_, first + AHEAD);
      hashes.clear();
      for (int64_t number = first; number < end; ++number) {
        const int64_t count = PyTuple_Size(inputs_[number].get());
        for (int64_t place = 0; place < count; ++place) {
          hashes.push_back(python::hash_of(PyTuple_GetItem(inputs_[number].get(), place)));
          numbers_.expect(hashes.back());
        }
      }
      const size_t* hash = hashes.data();
      for (int64_t number = first; number < end; ++number) {
        const python::Object own = std::move(inputs_[number]);
        const int64_t count = PyTuple_Size(own.get());
        for (int64_t place = 0; place < count; ++place) {
          *befores = numbers_.find(PyTuple_GetItem(own.get(), place), *hash++);
          if (*befores++ == python::Numbers::NOBODY) return {number, place};
        }
      }
    }
    return {};
  }

 private:
  static constexpr int64_t AHEAD = 64;  // tasks whose places in the table are fetched together
  const int64_t many_;
  python::Numbers numbers_;
  Array<python::Object> inputs_;  // a tuple each
};
