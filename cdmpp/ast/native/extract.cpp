// A lowered PrimFunc -> all numbers of its compact AST in one block of bytes.
//
// Layout, little endian as on the host: int32 leaves, kernels, leaf width, kernel width; int32 positions, serial
// positions and kernel of each leaf; float32 leaf features; float32 kernel features.
#include <tvm/ffi/function.h>

#include <atomic>
#include <thread>

#include "kernel.h"
#include "simplified.h"

namespace cdmpp {

static void put(std::string& bytes, const void* data, size_t size) {
  bytes.append(static_cast<const char*>(data), size);
}

static void put(std::string& bytes, int32_t number) { put(bytes, &number, sizeof number); }

static void put(std::string& bytes, const Numbers& numbers) {
  for (double number : numbers) {
    float rounded = static_cast<float>(number);
    put(bytes, &rounded, sizeof rounded);
  }
}

// A launch needs threads: a loop nest without any is not scheduled for a GPU.
static void refuse_unbound(const Tree& tree) {
  Vector<char> bound(tree.kernels.size());
  for (const Leaf& leaf : tree.leaves) {
    for (const auto& loop : leaf.loops) bound[leaf.kernel] |= loop->kind == THREAD;
  }
  auto unbound = std::count(bound.begin(), bound.end(), 0);
  if (unbound == 0) return;
  throw Unsupported(std::to_string(unbound) + " of " + std::to_string(bound.size()) +
                    " loop nests bind no loop to a GPU thread: the program is not scheduled for this target. "
                    "Schedule it (MetaSchedule, dlight) or name a CPU device");
}

static ffi::Bytes summary(const Tree& tree, Vector<Arithmetic> counted, bool gpu) {
  if (gpu) refuse_unbound(tree);
  Deque<LeafFacts> facts;  // never moves its elements
  Vector<Numbers> leaves, kernels;
  for (size_t i = 0; i < tree.leaves.size(); ++i) {
    facts.push_back(leaf_facts(tree.leaves[i], std::move(counted[i]), gpu));
    leaves.push_back(leaf_vector(facts.back()));
  }
  for (size_t k = 0; k < tree.kernels.size(); ++k) {
    Facts inside;
    for (const LeafFacts& f : facts) {
      if (f.leaf.kernel == static_cast<int32_t>(k)) inside.push_back(&f);
    }
    kernels.push_back(kernel_vector(tree.kernels[k], inside, tree.function_allocations, gpu));
  }
  std::string bytes;
  bytes.reserve(64 + leaves.size() * (12 + 4 * leaves[0].size()) + kernels.size() * 4 * kernels[0].size());
  put(bytes, static_cast<int32_t>(leaves.size()));
  put(bytes, static_cast<int32_t>(kernels.size()));
  put(bytes, static_cast<int32_t>(leaves[0].size()));
  put(bytes, static_cast<int32_t>(kernels[0].size()));
  for (const Leaf& leaf : tree.leaves) put(bytes, leaf.position);
  for (const Leaf& leaf : tree.leaves) put(bytes, leaf.serial_position);
  for (const Leaf& leaf : tree.leaves) put(bytes, leaf.kernel);
  for (const Numbers& numbers : leaves) put(bytes, numbers);
  for (const Numbers& numbers : kernels) put(bytes, numbers);
  return ffi::Bytes(std::move(bytes));
}

// Expressions that are stored and nested more than `most` deep are refused: TVM's passes and the walk recurse over them.
// Without recursion, which some would not survive. What is reached is asked of memory long before it is looked at, so
// that all that is read afterwards is at hand: the parts of a program lie far apart.
static void refuse_deep(Node function, int64_t most) {
  constexpr int64_t STATEMENT = 0, NOT_STORED = INT64_MIN;
  struct Part {
    Node node;
    int64_t depth;
    Node store;
  };
  Vector<Part> waiting;
  waiting.reserve(512);
  auto ahead = [](Node node) {
    __builtin_prefetch(node);
    __builtin_prefetch(reinterpret_cast<const char*>(node) + 64);
  };
  auto wait_for = [&](Node node, int64_t depth, Node store) {
    if (node == nullptr) return;
    if (depth > most) {
      throw Unsupported("what is stored to " + name_of(child(store, Field::buffer)) + " is nested more than " +
                        std::to_string(most) + " deep: give parts of long sums a buffer of their own");
    }
    ahead(node);
    waiting.push_back({node, depth, store});
  };
  wait_for(child(function, Field::body), STATEMENT, nullptr);
  for (size_t i = 0; i < waiting.size(); ++i) {
    auto [node, depth, store] = waiting[i];
    if (node->type_index() == TVMFFITypeIndex::kTVMFFIArray) {
      for (const ffi::Any& part : *static_cast<const ffi::ArrayObj*>(node)) wait_for(part.as<ffi::Object>(), depth, store);
      continue;
    }
    Kind kind = kind_of(node);
    if (is_immediate(kind) || kind == Kind::Var) continue;
    int64_t next = depth == STATEMENT ? STATEMENT : depth + 1;
    if (kind == Kind::BufferStore) {
      ahead(child(node, Field::buffer));
      wait_for(child(node, Field::value), 1, node);
      wait_for(list(node, Field::indices), 1, node);
    } else if (kind == Kind::SeqStmt) {
      wait_for(child(node, Field::seq), STATEMENT, nullptr);
    } else if (kind == Kind::TensorLoad || kind == Kind::Call) {
      ahead(child(node, kind == Kind::Call ? Field::op : Field::source));
      wait_for(child(node, kind == Kind::Call ? Field::args : Field::indices), next, store);
    } else if (depth != STATEMENT) {
      ahead(child(node, Field::var));
      for (Field field : children_of(node)) wait_for(child(node, field), next, store);
    } else {
      for (Field field : {Field::loop_var, Field::annotations}) ahead(child(node, field));
      for (Field field : {Field::iter_vars, Field::iter_values, Field::min, Field::extent, Field::predicate}) {
        wait_for(child(node, field), NOT_STORED, nullptr);
      }
      for (Field field : {Field::body, Field::block, Field::then_case, Field::else_case}) {
        wait_for(child(node, field), STATEMENT, nullptr);
      }
    }
  }
}

static Vector<Arithmetic> count_all(const Tree& tree) {
  Vector<Arithmetic> counted;
  for (const Leaf& leaf : tree.leaves) counted.push_back(count(leaf));
  return counted;
}

// TVM's passes: for what schedules of GPUs hold and those of CPUs seldom do; those that a store in doubt is simplified by.
struct Passes {
  ffi::ObjectRef cheap, simplify;
};

// The same of a scheduled program that TVM has not lowered, nearly, or, where `exactly` is set, to the last bit: see
// sums.h, placement.h and simplified.h.
static ffi::Bytes read_scheduled(Node module, Node function, const Passes& passes, bool gpu) {
  Survey survey = Surveyor().run(function);
  Tree tree = walk(function, &survey);
  Vector<Arithmetic> counted;
  Vector<Leaf*> doubtful;
  Vector<size_t> places;
  for (Leaf& leaf : tree.leaves) {
    Softly doubts;
    counted.push_back(count(leaf));
    if (!leaf.doubtful && doubts.why == nullptr) continue;
    doubtful.push_back(&leaf);
    places.push_back(counted.size() - 1);
  }
  ffi::ObjectRef alive;
  if (!doubtful.empty()) {
    alive = Simplifier(module, function, passes.simplify, gpu).run(doubtful);
    for (size_t i : places) counted[i] = count(tree.leaves[i]);
  }
  return summary(tree, std::move(counted), gpu);
}

static Node only_function(const ffi::ObjectRef& module) {
  const auto* functions = static_cast<const ffi::MapObj*>(child(module.get(), Field::functions));
  if (functions == nullptr || functions->size() != 1) throw Unsupported("a module with several functions");
  return (*functions->begin()).second.as<ffi::Object>();
}

static ffi::Bytes read_module(const ffi::ObjectRef& module, const Passes& passes, bool gpu, int64_t most_deep) {
  Node function = only_function(module);
  refuse_deep(function, most_deep);
  if (!gpu) {
    try {
      return read_scheduled(module.get(), function, passes, gpu);
    } catch (const Doubt&) {
      throw;
    } catch (const Unsupported&) {
    }
  }
  auto run = ffi::Function::GetGlobalRequired("transform.RunPass");
  auto lower = run(passes.cheap, module).cast<ffi::ObjectRef>();
  return read_scheduled(lower.get(), only_function(lower), passes, gpu);
}

// Of each scheduled module; empty bytes for one that has to be lowered, or is to be refused. `exact`: also empty where a
// number may differ from what lowering gives. The caller's interpreter is not needed meanwhile.
ffi::Array<ffi::Bytes> extract_scheduled(ffi::Array<ffi::ObjectRef> modules, ffi::ObjectRef cheap, ffi::ObjectRef simplify,
                                         bool gpu, int64_t most_deep, int64_t threads, bool exact) {
  const Passes passes{cheap, simplify};
  std::vector<ffi::Bytes> found(modules.size());
  std::atomic<size_t> next = 0;
  auto work = [&] {
    Pool pool;
    exactly = exact;
    for (size_t i = next++; i < found.size(); i = next++) {
      try {
        found[i] = read_module(modules[static_cast<int64_t>(i)], passes, gpu, most_deep);
      } catch (...) {  // whatever it is, lowering meets it too and says so
      }
    }
  };
  std::vector<std::thread> others;
  for (int64_t k = 1; k < std::min<int64_t>(threads, static_cast<int64_t>(found.size())); ++k) others.emplace_back(work);
  work();
  for (auto& thread : others) thread.join();
  return ffi::Array<ffi::Bytes>(found.begin(), found.end());
}

// All reasons to lower a scheduled module, one a line.
ffi::String doubts(ffi::ObjectRef module, ffi::ObjectRef cheap, ffi::ObjectRef simplify, bool gpu, int64_t most_deep) {
  Pool pool;
  std::set<std::string> found;
  exactly = true;
  gathered = &found;
  try {
    read_module(module, {cheap, simplify}, gpu, most_deep);
  } catch (const std::exception& error) {
    found.insert(error.what());
  }
  gathered = nullptr;
  std::string lines;
  for (const std::string& reason : found) lines += reason + "\n";
  return lines;
}

// What `read` gives; why it cannot as an error that Python knows by its kind.
template <typename Read>
static auto or_reason(const Read& read) {
  Pool pool;
  try {
    return read();
  } catch (const Unsupported& error) {
    throw ffi::Error("UnsupportedProgramError", error.what(), "");
  } catch (const std::exception& error) {
    throw ffi::Error("UnsupportedProgramError", std::string("the program cannot be read: ") + error.what(), "");
  }
}

ffi::Bytes extract(ffi::ObjectRef function, bool gpu) {
  return or_reason([&] {
    const Tree tree = walk(function.get());
    return summary(tree, count_all(tree), gpu);
  });
}

void refuse_deep_expressions(ffi::ObjectRef function, int64_t most) {
  or_reason([&] { refuse_deep(function.get(), most); });
}

ffi::String feature_names() { return FEATURE_NAMES; }

}  // namespace cdmpp

TVM_FFI_DLL_EXPORT_TYPED_FUNC(extract, cdmpp::extract);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(extract_scheduled, cdmpp::extract_scheduled);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(doubts, cdmpp::doubts);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(refuse_deep, cdmpp::refuse_deep_expressions);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(feature_names, cdmpp::feature_names);
