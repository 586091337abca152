// SharedLinks: each link divides its rate evenly among its flows; the tightest of its links paces a flow.
//
// A thousand flows may share a link, and when one joins or leaves nobody touches the others. A flow has its home on the
// link that most flows share; the least share of its other links is its *cap*. Flows of one home and one cap go equally
// fast, so they are kept as one group, which has one clock: the bytes that each of its flows has sent. A group either
// goes with its link or at its cap, and a change of the link's share moves only the groups whose cap lies between the
// old share and the new one. When a flow joins another link that it crosses, the few flows there that have their home
// elsewhere get another cap.

#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "heap.h"

constexpr double NEVER = std::numeric_limits<double>::infinity();
constexpr size_t KEPT = 16;  // groups that a link keeps although they are empty

// When, order of arrival, of whom, its version. An entry of an earlier version is void.
template <class Owner>
struct Due {
  double when;
  int64_t order;
  Owner* owner;
  int64_t version;
  bool operator<(const Due& other) const {
    if (when != other.when) return when < other.when;
    if (order != other.order) return order < other.order;
    return version < other.version;
  }
};

struct Group;
struct Link;
using Way = std::vector<Link*>;  // all links that a flow crosses, each once

// A flow under way.
struct Moving {
  int32_t item;
  const Way* way;
  int64_t count;
  double left_bytes;
  Group* group;
  double target;               // the clock of its group at which all is sent
  int64_t entry;               // the number of its entry in the heap of the group
  std::vector<int64_t> guest;  // where it stands among the guests of each link of its way; 0: it is none
};

// A link, and the flows that have their home here.
struct Link {
  Link(double bytes_per_s, std::vector<Group*>& unused) : rate(bytes_per_s), share(bytes_per_s), resting(unused) {}

  double rate, share;
  int64_t count = 0;                              // flows that cross it, each as many times as it stands for
  std::map<int64_t, Moving*> guests;              // flows that cross it and have their home elsewhere, in order
  int64_t members = 0;                            // flows that have their home here
  std::vector<std::pair<double, Group*>> groups;  // by their caps, the least first
  double sent_bytes = 0.0, since_s = 0.0;  // the clock at `since_s`: bytes of a flow which always went along
  Heap<Due<Group>> along;                  // groups that go along, by the clock at which their next flow is done
  Heap<Due<Group>> capped;                 // the others, by time
  int64_t version = 0;
  bool is_changed = false, is_home = false;  // it is in the list of these
  std::vector<Group*>& resting;              // groups of any link that may be used again

  double clock(double now_s) const { return sent_bytes + share * (now_s - since_s); }
  std::vector<std::pair<double, Group*>>::iterator place(double cap) {
    return std::lower_bound(groups.begin(), groups.end(), cap,
                            [](const std::pair<double, Group*>& one, double value) { return one.first < value; });
  }
  inline void settle(double now_s);
  inline void drop(Group* group);
  inline void ended(double now_s, std::vector<Moving*>& done);
  inline double next_s();
};

// Flows of one home and one cap.
struct Group {
  Link* home = nullptr;
  double cap = 0.0;
  Heap<Due<Moving>> flows;  // by target
  double sent_bytes = 0.0;  // the clock at `at`
  bool goes_along = false;
  double at = 0.0;      // the clock of the link, where the group goes along with it, or the time
  int64_t version = 0;  // it only rises, also when the group is used again

  void begin(Link* link, double its_cap, double now_s) {
    home = link, cap = its_cap, sent_bytes = 0.0;
    flows.clear();
    goes_along = cap >= home->share;
    at = goes_along ? home->clock(now_s) : now_s;
    ++version;
  }
  double clock(double now_s) const {
    return goes_along ? sent_bytes + (home->clock(now_s) - at) : sent_bytes + cap * (now_s - at);
  }
  // Go along with the link from now on, or no longer.
  void turn(double now_s) {
    sent_bytes = clock(now_s);
    goes_along = !goes_along;
    at = goes_along ? home->clock(now_s) : now_s;
    announce();
  }
  void take(Moving* moving, double now_s, int64_t order) {
    moving->group = this, moving->entry = order;
    moving->target = clock(now_s) + moving->left_bytes;
    ++home->members;
    flows.push({moving->target, order, moving, order});
    if (flows.top().owner == moving) announce();
  }
  void leave(Moving* moving, double now_s) {
    moving->left_bytes = std::max(0.0, moving->target - clock(now_s));
    moving->group = nullptr;
    --home->members;
    announce();
  }
  // Take out the flows that end next, all at once.
  void ended(std::vector<Moving*>& done) {
    const double target = flows.top().when;
    while (!flows.empty() && flows.top().when == target) {
      const Due<Moving> due = flows.pop();
      if (is_void(due)) continue;
      due.owner->group = nullptr;
      done.push_back(due.owner);
      --home->members;
    }
    announce();
  }
  // Tell the link when the next flow is done.
  void announce() {
    ++version;
    while (!flows.empty() && is_void(flows.top())) flows.pop();
    if (flows.empty()) {
      home->drop(this);
      return;
    }
    const double left = flows.top().when - sent_bytes;
    if (goes_along) home->along.push({at + left, flows.top().order, this, version});
    else home->capped.push({at + left / cap, flows.top().order, this, version});
  }

 private:
  bool is_void(const Due<Moving>& due) const {
    return due.owner->group != this || due.owner->entry != due.version;
  }
};

template <class Owner>
const Due<Owner>* head(Heap<Due<Owner>>& heap) {
  while (!heap.empty() && heap.top().owner->version != heap.top().version) heap.pop();
  return heap.empty() ? nullptr : &heap.top();
}

// Give each flow its new share from now on.
void Link::settle(double now_s) {
  sent_bytes = clock(now_s), since_s = now_s;
  const double before = share, after = rate / static_cast<double>(count ? count : 1);
  if (!members) {
    for (const auto& [cap, group] : groups) resting.push_back(group);
    groups.clear();
    along.clear();
    capped.clear();
    sent_bytes = 0.0;
  }
  share = after;
  const double least = std::min(before, after), most = std::max(before, after);
  // a group goes along where its cap is not below the share
  const std::vector<std::pair<double, Group*>> turned(place(least), place(most));
  for (const auto& [cap, group] : turned) group->turn(now_s);
}

// Forget a group without flows, unless there are so few that it may stay for the next flow.
void Link::drop(Group* group) {
  if (groups.size() <= KEPT) return;
  const auto found = place(group->cap);
  if (found == groups.end() || found->second != group) return;
  groups.erase(found);
  resting.push_back(group);
}

// Take out the flows that end now.
void Link::ended(double now_s, std::vector<Moving*>& done) {
  const Due<Group>* first = head(along);
  if (first) {
    const double when = first->when;
    if (since_s + (when - sent_bytes) / share <= now_s) {
      sent_bytes = when, since_s = now_s;
      for (; first && first->when == when; first = head(along)) first->owner->ended(done);
    }
  }
  while ((first = head(capped)) && first->when <= now_s) first->owner->ended(done);
}

// When its next flow is done; never without flows.
double Link::next_s() {
  double found = NEVER;
  if (const Due<Group>* first = head(along)) found = since_s + (first->when - sent_bytes) / share;
  if (const Due<Group>* first = head(capped); first && first->when < found) found = first->when;
  return found > since_s ? found : since_s;
}

// All links of one simulation. What a flow leaves of its share on the other links nobody else takes. Between two calls
// of `next_s` time stands still: flows that join and leave together change the shares once.
class SharedLinks {
 public:
  SharedLinks(int64_t count, const double* rates) {
    for (int64_t number = 0; number < count; ++number) links_.emplace_back(rates[number], groups_at_rest_);
  }

  int64_t flows = 0;  // flows under way

  Link* link(int64_t number) { return &links_[number]; }

  // Add a flow from `now_s` on; `ended` gives `item` back.
  void join(int32_t item, double bytes, int64_t count, const Way& way, double now_s) {
    for (Link* link : way) {
      link->count += count;
      if (link->count > count || !link->groups.empty()) {
        change(link);
      } else {  // it is alone
        link->share = link->rate / static_cast<double>(count), link->since_s = now_s;
      }
    }
    Moving* moving = taken(resting_, movings_);
    moving->item = item, moving->way = &way, moving->count = count, moving->left_bytes = bytes;
    moving->group = nullptr, moving->target = 0.0, moving->entry = 0;
    moving->guest.assign(way.size(), 0);
    joined_.push_back(moving);
    ++flows;
  }

  // When the next flow is done, with all that joined or left by `now_s`; never without flows.
  double next_s(double now_s) {
    if (!changed_.empty() || !joined_.empty()) settle(now_s);
    const Due<Link>* first = head(ends_);
    return first ? first->when : NEVER;
  }

  // The items of the flows that are done at `now_s`, which `next_s` has said; they have left.
  const std::vector<int32_t>& ended(double now_s) {
    items_.clear();
    while (!ends_.empty() && ends_.top().when == now_s) {
      const Due<Link> due = ends_.pop();
      if (due.owner->version != due.version) continue;
      done_.clear();
      due.owner->ended(now_s, done_);
      for (Moving* moving : done_) {
        items_.push_back(moving->item);
        for (size_t place = 0; place < moving->way->size(); ++place) {
          Link* crossed = (*moving->way)[place];
          crossed->count -= moving->count;
          be_no_guest(moving, place);
          if (crossed->count || !crossed->groups.empty()) change(crossed);
        }
        resting_.push_back(moving);
      }
    }
    flows -= static_cast<int64_t>(items_.size());
    return items_;
  }

 private:
  std::deque<Link> links_;
  std::deque<Moving> movings_;
  std::deque<Group> groups_;
  std::vector<Group*> groups_at_rest_;
  std::vector<Moving*> resting_, joined_, done_;
  std::vector<Link*> changed_, homes_;  // changed: links that a flow has joined or left
  std::vector<int32_t> items_;
  Heap<Due<Link>> ends_;  // links, by the time at which their next flow is done
  int64_t order_ = 0, guests_ = 0;

  template <class One>
  static One* taken(std::vector<One*>& resting, std::deque<One>& all) {
    if (resting.empty()) return &all.emplace_back();
    One* found = resting.back();
    resting.pop_back();
    return found;
  }
  void change(Link* link) {
    if (!link->is_changed) changed_.push_back(link);
    link->is_changed = true;
  }
  void at_home(Link* link) {
    if (!link->is_home) homes_.push_back(link);
    link->is_home = true;
  }
  void be_no_guest(Moving* moving, size_t place) {
    if (!moving->guest[place]) return;
    (*moving->way)[place]->guests.erase(moving->guest[place]);
    moving->guest[place] = 0;
  }
  Group* group(Link* home, double cap, double now_s) {
    const auto found = home->place(cap);
    if (found != home->groups.end() && found->first == cap) return found->second;
    Group* made = taken(groups_at_rest_, groups_);
    made->begin(home, cap, now_s);
    home->groups.insert(found, {cap, made});
    return made;
  }

  void settle(double now_s) {
    std::vector<Link*> changed;
    std::vector<Moving*> joined;
    changed.swap(changed_), joined.swap(joined_);
    for (Link* link : changed) {
      link->is_changed = false;
      if (link->members || !link->groups.empty()) {
        link->settle(now_s);
        at_home(link);
      } else {  // nobody's home
        link->share = link->rate / static_cast<double>(link->count ? link->count : 1), link->since_s = now_s;
      }
    }
    std::vector<Moving*> guests;
    for (Link* link : changed) {
      guests.clear();
      for (const auto& [number, moving] : link->guests) guests.push_back(moving);
      for (Moving* moving : guests) place(moving, now_s);
    }
    for (Moving* moving : joined) place(moving, now_s);
    for (Link* link : homes_) {
      link->is_home = false;
      ++link->version;
      if (const double end_s = link->next_s(); end_s < NEVER) ends_.push({end_s, order_++, link, link->version});
    }
    homes_.clear();
  }

  // Put a flow into the group where it belongs.
  void place(Moving* moving, double now_s) {
    Group* before = moving->group;
    Link* was = before ? before->home : nullptr;
    const Way& way = *moving->way;
    Link* home = before ? was : way[0];
    double cap = NEVER;
    if (way.size() > 1) {
      int64_t most = before ? 2 * home->count : home->count;  // a home that changes to and fro costs time
      for (Link* link : way) {
        if (link->count > most) home = link, most = link->count;
      }
      for (Link* link : way) {
        if (link->share < cap && link != home) cap = link->share;
      }
    }
    if (before) {
      if (was == home && before->cap == cap) return;
      before->leave(moving, now_s);
      at_home(was);
    }
    if (was != home) {
      for (size_t at = 0; at < way.size(); ++at) {
        if (way[at] == home) {
          be_no_guest(moving, at);
        } else if (!moving->guest[at]) {
          moving->guest[at] = ++guests_;
          way[at]->guests.emplace(moving->guest[at], moving);
        }
      }
    }
    group(home, cap, now_s)->take(moving, now_s, order_++);
    at_home(home);
  }
};
