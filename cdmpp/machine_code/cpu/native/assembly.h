// x86-64 assembly text -> functions of basic blocks: assembly.py.
#pragma once
#include <deque>
#include "graph.h"

namespace cdmpp {

struct Jump { bool jumps = false, always = false; Text target; };

inline Jump jump_of(Text line) {
  Scan scan{line};
  if (!scan.eat("j")) return {};
  Text how = scan.run(is_word), spaces = scan.run([](char c) { return c == ' ' || c == '\t'; });
  Text target = scan.run([](char c) { return c != ' ' && c != '\t'; });
  if (how.empty() || spaces.empty() || target.empty()) return {};
  return {true, how.starts_with("mp"), target};
}

class AsmFunction : public BlockGraph {
 public:
  // What its jumps lead to, and the next block of the text where a block may go on.
  void link_jumps() {
    std::vector<std::vector<Text>> targets(size());
    for (int b = 0; b < size(); ++b) {
      Text last = lines[b].empty() ? Text() : lines[b].back();
      Jump jump = jump_of(last);
      if (jump.jumps) targets[b].push_back(jump.target);
      if (!last.starts_with("ret") && !jump.always && b + 1 < size()) targets[b].push_back(names[b + 1]);
    }
    link(targets);
  }
};

class Assembly {
 public:
  explicit Assembly(Text text) {
    if (!is_x86(text)) throw Unsupported();
    static constexpr Text NO_CODE[] = {".Ltmp", ".Lfunc_begin", ".LCPI", ".Ldebug", ".Linfo"};
    AsmFunction* function = nullptr;
    int current = 0, splits = 0;
    Lines lines{text};
    for (Text raw; lines.next(raw);) {
      Scan scan{raw};
      Text label = scan.run([](char c) { return is_word(c) || c == '.' || c == '$'; });
      if (!label.empty() && scan.eat(":")) {
        if (label.starts_with(".Lfunc_end")) {
          function = nullptr;
        } else if (label.starts_with(".LBB")) {
          if (function) current = function->add(label);
        } else if (!starts_with_any(label, NO_CODE)) {
          function = &functions_.emplace_back();
          function->name = label.substr(label.starts_with(".L") ? 2 : 0);
          current = function->add("entry");
        }
        continue;
      }
      if (!function || !raw.starts_with('\t') || raw.starts_with("\t.") || raw.starts_with("\t#")) continue;
      if (!function->lines[current].empty() && jump_of(function->lines[current].back()).jumps) {
        current = function->add(function->names[current] + "+" + std::to_string(++splits));
      }
      function->lines[current].push_back(with_space(stripped(before(raw, "#"))));
    }
  }
  // The last of that name that has any instruction; none where there is no such.
  AsmFunction* find(Text name) {
    for (auto function = functions_.rbegin(); function != functions_.rend(); ++function) {
      if (function->name != name) continue;
      bool empty = std::all_of(function->lines.begin(), function->lines.end(), [](auto& l) { return l.empty(); });
      return empty ? nullptr : &*function;
    }
    return nullptr;
  }

 private:
  std::deque<AsmFunction> functions_;
  std::deque<std::string> texts_;

  static bool is_x86(Text text) {
    for (size_t at = text.find('%'); at != NOWHERE; at = text.find('%', at + 1)) {
      Text name = text.substr(at + 1, 3), after = text.substr(std::min(text.size(), at + 4), 1);
      bool wide = name.starts_with('r') || name.starts_with('e');
      if (wide && (name.ends_with("sp") || name.ends_with("ax") || name.ends_with("di")) &&
          (after.empty() || !is_word(after[0]))) return true;
    }
    return false;
  }
  // A space for the tab behind the name.
  Text with_space(Text line) {
    size_t tab = line.find('\t');
    if (tab == NOWHERE) return line;
    std::string& text = texts_.emplace_back(line);
    text[tab] = ' ';
    return text;
  }
};

}  // namespace cdmpp
