// Rows of instructions as sass_rows.py writes them: fields, and the kinds, spaces, pipes and sources that they name, in
// the order of sass_fields.py; tests/machine_code/test_tables.py holds the two equal.
#pragma once

#include <cstdint>

namespace sass {

constexpr int64_t INSTRUCTION_BYTES = 16;
constexpr int64_t SECTOR_BYTES = 32;
constexpr int64_t LINE_SECTORS = 4;
constexpr int64_t REGISTERS = 320, ZERO_REGISTER = 255;
constexpr int64_t UNIFORM_REGISTERS = 256, UNIFORM_ZERO_REGISTER = 319;  // behind the others
constexpr int64_t PREDICATES = 16, TRUE_PREDICATE = 7, UNIFORM_PREDICATE_PLACE = 8;
constexpr int64_t NEGATED_FLAG = 1, INVERTED_FLAG = 2, MAGNITUDE_FLAG = 4;  // of an operand

// Where the arguments of a kernel point to: far from each other, aligned.
constexpr uint64_t POINTERS = 0x7Full << 40;
constexpr int64_t POINTERS_APART = 30;

// Cycles of work that may wait before the pipe of special functions, that to memory, and the second-level cache.
constexpr int64_t SPECIAL_QUEUE = 16, MEMORY_QUEUE = 24, L2_QUEUE = 256;
constexpr int64_t OPERANDS_CYCLES = 12;  // until an access to memory has read its registers

enum Field : int64_t {
    KIND, PIPE, COUNTED, GUARD, GUARD_NOT,
    TO, TO_COUNT, TO_PREDICATE, TO_SECOND,
    SOURCE0_KIND, SOURCE0_VALUE, SOURCE0_FLAGS,
    SOURCE1_KIND, SOURCE1_VALUE, SOURCE1_FLAGS,
    SOURCE2_KIND, SOURCE2_VALUE, SOURCE2_FLAGS,
    PREDICATE, PREDICATE_NOT, SECOND, SECOND_NOT, OPTION, MORE,
    SPACE, WIDTH, BASE, BASE_SCALE, BASE_WIDE, UNIFORM_BASE, OFFSET,
    SHARED_BASE, SHARED_SCALE, SHARED_UNIFORM, SHARED_OFFSET,
    TARGET, STALL, YIELDS, WRITE_BARRIER, READ_BARRIER, WAITS,
    FIELD_COUNT
};
enum Kind : int64_t {
    NOTHING, UNKNOWN, MOVE, SPECIAL, ADD, MULTIPLY, MULTIPLY_WIDE, MULTIPLY_HIGH, SHIFT_ADD, SHIFT_ADD_HIGH, SHIFT_LEFT,
    SHIFT_RIGHT, LOGIC, PREDICATE_LOGIC, COMPARE, SELECT, LEAST, ABSOLUTE, PERMUTE, DOT, SIGN_EXTEND, BIT_MASK,
    COUNT_BITS, PREDICATES_TO_REGISTER, REGISTER_TO_PREDICATES, BALLOT, LOAD, STORE, COPY, BRANCH, RETURN, EXIT, BARRIER,
    COMMIT, WAIT
};
enum Space : int64_t { SPACE_NONE, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL };
enum Pipe : int64_t { PIPE_NONE, PIPE_FMA, PIPE_ALU, PIPE_SPECIAL, PIPE_MEMORY, PIPE_UNIFORM };
enum Source : int64_t { SOURCE_REGISTER, SOURCE_IMMEDIATE, SOURCE_CONSTANT, SOURCE_NOWHERE };

}  // namespace sass
