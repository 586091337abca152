// Reading TVM objects through tvm_ffi reflection: TVM's own headers are not shipped, field offsets are looked up once.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/tvm_ffi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cdmpp {

namespace ffi = tvm::ffi;
using Node = const ffi::Object*;

// The program cannot be read, and why: a user sees the text.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#define CDMPP_KINDS(X)                                                                                              \
  X(IntImm) X(FloatImm) X(StringImm) X(Var) X(TensorLoad) X(Call) X(Add) X(Sub) X(Mul) X(Div) X(Mod) X(FloorDiv)    \
  X(FloorMod) X(Min) X(Max) X(EQ) X(NE) X(LT) X(LE) X(GT) X(GE) X(And) X(Or) X(Not) X(Cast) X(Ramp) X(Broadcast)    \
  X(Select) X(For) X(SeqStmt) X(SBlockRealize) X(SBlock) X(IfThenElse) X(AttrStmt) X(BufferStore) X(Evaluate)       \
  X(AllocBuffer) X(Bind) X(DeclBuffer) X(AssertStmt) X(While) X(BufferType) X(PrimType)

enum class Kind : uint8_t {
  Other,
#define CDMPP_X(name) name,
  CDMPP_KINDS(CDMPP_X)
#undef CDMPP_X
};

#define CDMPP_FIELDS(X)                                                                                             \
  X(a) X(b) X(condition) X(true_value) X(false_value) X(value) X(base) X(body) X(indices) X(source) X(op) X(args)   \
  X(ty) X(name) X(loop_var) X(min) X(extent) X(kind) X(thread_binding) X(annotations) X(buffer) X(seq)              \
  X(predicate) X(block) X(alloc_buffers) X(then_case) X(else_case) X(node) X(attr_key) X(lanes) X(shape) X(dtype)   \
  X(storage_scope) X(params) X(thread_tag) X(var) X(iter_vars) X(iter_values) X(iter_type) X(init)                    \
  X(match_buffers) X(functions) X(ret_type) X(attrs)

enum class Field : uint8_t {
#define CDMPP_X(name) name,
  CDMPP_FIELDS(CDMPP_X)
#undef CDMPP_X
  count
};

// Children that expressions may have, in the order of expression.CHILDREN.
constexpr std::array<Field, 8> CHILDREN = {Field::a,     Field::b,    Field::condition, Field::true_value, Field::false_value,
                                           Field::value, Field::base, Field::body};

struct Slot {
  int64_t offset = -1;
  int64_t size = 0;
  TVMFFIFieldGetter getter = nullptr;
};

struct Type {
  Kind kind = Kind::Other;
  uint8_t n_children = 0;
  std::array<Field, CHILDREN.size()> children;  // those of CHILDREN that it has
  // Where a field refers to an object; ABSENT where there is none, ELSEWHERE: see its slot. What is read most lies close
  // together.
  static constexpr int16_t ABSENT = -2, ELSEWHERE = -1;
  std::array<int16_t, static_cast<size_t>(Field::count)> objects;
  std::array<Slot, static_cast<size_t>(Field::count)> slots;
};

inline Type describe(int32_t index) {
  static const std::unordered_map<std::string_view, Kind> kinds = {
#define CDMPP_X(name) {#name, Kind::name},
      CDMPP_KINDS(CDMPP_X)
#undef CDMPP_X
  };
  static const std::unordered_map<std::string_view, Field> fields = {
#define CDMPP_X(name) {#name, Field::name},
      CDMPP_FIELDS(CDMPP_X)
#undef CDMPP_X
  };
  Type type;
  type.objects.fill(Type::ABSENT);
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(index);
  std::string_view key(info->type_key.data, info->type_key.size);
  if (auto dot = key.rfind('.'); dot != std::string_view::npos) key = key.substr(dot + 1);
  if (auto it = kinds.find(key); it != kinds.end()) type.kind = it->second;
  ffi::reflection::ForEachFieldInfo(info, [&](const TVMFFIFieldInfo* field) {
    if (auto it = fields.find(std::string_view(field->name.data, field->name.size)); it != fields.end()) {
      type.slots[static_cast<size_t>(it->second)] = {field->offset, field->size, field->getter};
      bool object = field->size == sizeof(void*) && field->offset <= INT16_MAX;
      type.objects[static_cast<size_t>(it->second)] = object ? static_cast<int16_t>(field->offset) : Type::ELSEWHERE;
    }
  });
  for (Field field : CHILDREN) {
    if (type.slots[static_cast<size_t>(field)].offset >= 0) type.children[type.n_children++] = field;
  }
  return type;
}

// Types by index: written once, read by all threads without a lock, which is the hottest path.
constexpr size_t MOST_TYPES = 1 << 16;
inline std::array<std::atomic<const Type*>, MOST_TYPES> types{};

[[gnu::noinline]] inline const Type& described(Node node) {
  if (node == nullptr) throw Unsupported("a TVM object lacks an expected part");
  int32_t index = node->type_index();
  if (static_cast<size_t>(index) >= MOST_TYPES) throw Unsupported("a TVM object of an unexpected type");
  static std::mutex one_at_a_time;
  static std::deque<Type> kept;  // never moves its elements
  std::lock_guard<std::mutex> held(one_at_a_time);
  if (const Type* known = types[index].load(std::memory_order_acquire)) return *known;
  kept.push_back(describe(index));
  types[index].store(&kept.back(), std::memory_order_release);
  return kept.back();
}

inline const Type& type_of(Node node) {
  if (node != nullptr && static_cast<size_t>(node->type_index()) < MOST_TYPES) [[likely]] {
    if (const Type* known = types[node->type_index()].load(std::memory_order_acquire)) [[likely]] return *known;
  }
  return described(node);
}

inline Kind kind_of(Node node) { return node == nullptr ? Kind::Other : type_of(node).kind; }

inline const Slot& slot_of(Node node, Field field) { return type_of(node).slots[static_cast<size_t>(field)]; }

inline bool has_field(Node node, Field field) { return slot_of(node, field).offset >= 0; }

inline std::string kind_name(Node node) {
  if (node == nullptr) return "missing";
  const auto& key = TVMFFIGetTypeInfo(node->type_index())->type_key;
  std::string_view name(key.data, key.size);
  return std::string(name.substr(name.rfind('.') + 1));
}

// Any field as a value (a copy; slower than child()).
inline ffi::Any read(Node node, Field field) {
  const Slot& slot = slot_of(node, field);
  if (slot.offset < 0) throw Unsupported("a TVM object lacks an expected field");
  TVMFFIAny raw{};
  char* address = reinterpret_cast<char*>(const_cast<ffi::Object*>(node)) + slot.offset;
  if (slot.getter(address, &raw) != 0) throw Unsupported("a field of a TVM object cannot be read");
  return ffi::details::AnyUnsafe::MoveTVMFFIAnyToAny(&raw);
}

// The object that a field refers to, borrowed from its parent; null where the field is absent or empty.
inline Node child(Node node, Field field) {
  const Type& type = type_of(node);
  int16_t place = type.objects[static_cast<size_t>(field)];
  if (place >= 0) return *reinterpret_cast<const Node*>(reinterpret_cast<const char*>(node) + place);
  if (place == Type::ABSENT) return nullptr;
  const Slot& slot = type.slots[static_cast<size_t>(field)];
  const char* address = reinterpret_cast<const char*>(node) + slot.offset;
  if (slot.size == sizeof(void*)) return *reinterpret_cast<const Node*>(address);
  if (slot.size == sizeof(TVMFFIAny)) {
    const auto* any = reinterpret_cast<const TVMFFIAny*>(address);
    return any->type_index >= TVMFFITypeIndex::kTVMFFIStaticObjectBegin ? reinterpret_cast<Node>(any->v_obj) : nullptr;
  }
  throw Unsupported("a field of a TVM object has an unexpected layout");
}

// Those of CHILDREN that an expression has.
inline std::span<const Field> children_of(Node node) {
  const Type& type = type_of(node);
  return {type.children.data(), type.n_children};
}

inline const ffi::ArrayObj* list(Node node, Field field) {
  Node found = child(node, field);
  if (found == nullptr || found->type_index() != TVMFFITypeIndex::kTVMFFIArray) {
    throw Unsupported("a TVM object lacks an expected array");
  }
  return static_cast<const ffi::ArrayObj*>(found);
}

inline Node item(const ffi::ArrayObj* array, size_t i) { return array->begin()[i].as<ffi::Object>(); }

inline const char* address_of(Node node, Field field, int64_t size) {
  const Slot& slot = slot_of(node, field);
  if (slot.offset < 0 || slot.size != size) throw Unsupported("a field of a TVM object has an unexpected layout");
  return reinterpret_cast<const char*>(node) + slot.offset;
}

// The text of a field, as long as its node lives.
inline std::string_view text(Node node, Field field) {
  const char* address = address_of(node, field, sizeof(ffi::String));
  int32_t index = reinterpret_cast<const TVMFFIAny*>(address)->type_index;
  if (index != TVMFFITypeIndex::kTVMFFISmallStr && index != TVMFFITypeIndex::kTVMFFIStr) {
    throw Unsupported("a field of a TVM object is no text");
  }
  const auto& found = *reinterpret_cast<const ffi::String*>(address);
  return {found.data(), found.size()};
}

// IntImm holds an Any, so that it may grow beyond 64 bits.
inline int64_t int_value(Node immediate) {
  const auto* any = reinterpret_cast<const TVMFFIAny*>(address_of(immediate, Field::value, sizeof(TVMFFIAny)));
  if (any->type_index != TVMFFITypeIndex::kTVMFFIInt) throw Unsupported("an integer beyond 64 bits");
  return any->v_int64;
}

inline double float_value(Node immediate) {
  return *reinterpret_cast<const double*>(address_of(immediate, Field::value, sizeof(double)));
}

// An int, a bool or an IntImm inside an Any.
inline int64_t any_integer(const ffi::Any& any) {
  if (auto number = any.as<int64_t>()) return *number;
  Node node = any.as<ffi::Object>();
  if (node != nullptr && kind_of(node) == Kind::IntImm) return int_value(node);
  throw Unsupported("an annotation is not an integer");
}

// A number that is no object: a kind of loop or of a block's variable.
inline int64_t enumerated(Node node, Field field) {
  const Slot& slot = slot_of(node, field);
  if (slot.size != sizeof(int32_t)) return read(node, field).cast<int64_t>();  // of an operator's loop program
  return *reinterpret_cast<const int32_t*>(address_of(node, field, sizeof(int32_t)));
}

inline DLDataType data_type(Node prim_type) {
  if (slot_of(prim_type, Field::dtype).size != sizeof(DLDataType)) return read(prim_type, Field::dtype).cast<DLDataType>();
  return *reinterpret_cast<const DLDataType*>(address_of(prim_type, Field::dtype, sizeof(DLDataType)));
}

}  // namespace cdmpp
