// LLVM IR text -> functions of basic blocks.
#pragma once
#include <memory>
#include "graph.h"
#include "tables.h"

namespace cdmpp {

struct Definition { Text text; int block = -1; };  // block: -1 where nothing defines it
struct Branch { Text condition, yes, no; };

inline bool read_branch(const std::vector<Text>& lines, Branch& branch) {
  if (lines.empty()) return false;
  Scan scan{lines.back()};
  return scan.eat("br i1 ") && scan.value(branch.condition) && scan.eat(", label %") && scan.label(branch.yes) &&
         scan.eat(", label %") && scan.label(branch.no);
}

class Function : public BlockGraph {
 public:
  std::vector<Definition> definitions;  // by the id of an SSA value
  Text header;                          // the line that names its arguments

  int id(Text value) {
    auto [found, is_new] = ids_.try_emplace(value, static_cast<int>(definitions.size()));
    if (is_new) definitions.emplace_back();
    return found->second;
  }
  int known_id(Text value) const {
    auto found = ids_.find(value);
    return found == ids_.end() ? -1 : found->second;
  }
  void link_labels() {
    std::vector<std::vector<Text>> targets(size());
    for (int b = 0; b < size(); ++b) {
      for (Text line : lines[b]) {
        for (size_t at = line.find("label %"); at != NOWHERE; at = line.find("label %", at + 1)) {
          Scan scan{line.substr(at + 7)};
          if (Text label; scan.label(label)) targets[b].push_back(unquoted(label));
        }
      }
    }
    link(targets);
  }
  void define() {
    for (int b = 0; b < size(); ++b) {
      for (Text line : lines[b]) {
        Scan scan{line};
        if (Text value; scan.name(value) && scan.eat(" = ")) definitions[id(value)] = {scan.rest, b};
      }
    }
  }

 private:
  std::unordered_map<Text, int> ids_;
};

class Module {
 public:
  std::vector<Function> functions;

  explicit Module(Text text) {
    bool inside = false;
    int current = -1;
    Lines lines{text};
    for (Text raw; lines.next(raw);) {
      if (!inside) {
        if (Text name = defined(raw); !name.empty()) {
          inside = true;
          current = -1;
          functions.emplace_back();
          functions.back().name = name;
          functions.back().header = raw;
        }
        continue;
      }
      if (raw == "}") { inside = false; continue; }
      Text line = stripped(raw);
      if (line.empty() || line.starts_with(';') || line.starts_with("#dbg")) continue;
      Function& function = functions.back();
      if (Text label = labelled(raw); !label.empty()) {
        current = function.add(unquoted(label));
        continue;
      }
      if (current < 0) current = function.add("entry");
      function.lines[current].push_back(has(line, "!") ? without_metadata(line) : line);
    }
  }

 private:
  std::vector<std::unique_ptr<std::string>> shortened_;

  static Text defined(Text line) {
    if (!line.starts_with("define ")) return {};
    for (size_t at = line.rfind('@'); at != NOWHERE && at > 0; at = line.rfind('@', at - 1)) {
      Scan scan{line.substr(at + 1)};
      Text name = scan.run([](char c) { return is_word(c) || c == '.'; });
      if (!name.empty() && scan.eat("(")) return name;
    }
    return {};
  }
  static Text labelled(Text line) {
    Scan scan{line};
    Text name = scan.run(is_name);
    if (name.empty() && scan.eat("\"")) {
      scan.run([](char c) { return c != '"'; });
      if (!scan.eat("\"")) return {};
      name = line.substr(0, line.size() - scan.rest.size());
      if (name.size() < 3) return {};
    }
    return scan.eat(":") ? name : Text();
  }
  Text without_metadata(Text line) {
    static constexpr Text KINDS[] = {"dbg", "prof", "tbaa", "llvm.loop", "noalias",
                                     "alias.scope", "range", "nonnull"};
    std::string kept;
    for (size_t at = 0; at < line.size();) {
      size_t mark = line.find(", !", at);
      if (mark == NOWHERE) mark = line.size();
      kept += line.substr(at, mark - at);
      if (mark == line.size()) break;
      if (starts_with_any(line.substr(mark + 3), KINDS)) {
        at = std::min(line.find(',', mark + 3), line.size());
      } else {
        kept += ", !";
        at = mark + 3;
      }
    }
    if (kept.size() == line.size()) return line;
    return *shortened_.emplace_back(std::make_unique<std::string>(std::move(kept)));
  }
};

}  // namespace cdmpp
