// Pairs of least total cost: shortest augmenting paths, D. F. Crouse, "On implementing 2D rectangular assignment
// algorithms", 2016, with the ties broken as in SciPy's linear_sum_assignment.
#pragma once
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace cdmpp {

// Pairs (row, column) by rows; `cost` of two indices.
template <class Cost>
std::vector<std::pair<int, int>> pairs_of_least_cost(int rows, int columns, const Cost& cost) {
  bool swapped = columns < rows;
  int n = swapped ? columns : rows, m = swapped ? rows : columns;
  constexpr double INF = std::numeric_limits<double>::infinity();
  std::vector<double> costs(static_cast<size_t>(n) * m), u(n, 0.0), v(m, 0.0), shortest(m);
  for (int i = 0; i < n; ++i) for (int j = 0; j < m; ++j) costs[i * m + j] = swapped ? cost(j, i) : cost(i, j);
  std::vector<int> path(m, -1), column_of(n, -1), row_of(m, -1), remaining(m);
  for (int current = 0; current < n; ++current) {
    std::vector<char> seen_row(n), seen_column(m);
    std::fill(shortest.begin(), shortest.end(), INF);
    for (int k = 0; k < m; ++k) remaining[k] = m - k - 1;  // a solution near the identity where several are as good
    double least = 0.0;
    int left = m, sink = -1;
    for (int i = current; sink < 0;) {
      int index = -1;
      double lowest = INF;
      seen_row[i] = 1;
      for (int k = 0; k < left; ++k) {
        int j = remaining[k];
        double reduced = least + costs[i * m + j] - u[i] - v[j];
        if (reduced < shortest[j]) { path[j] = i; shortest[j] = reduced; }
        if (shortest[j] < lowest || (shortest[j] == lowest && row_of[j] < 0)) { lowest = shortest[j]; index = k; }
      }
      least = lowest;
      int j = remaining[index];
      if (row_of[j] < 0) sink = j; else i = row_of[j];
      seen_column[j] = 1;
      remaining[index] = remaining[--left];
    }
    u[current] += least;
    for (int i = 0; i < n; ++i) if (seen_row[i] && i != current) u[i] += least - shortest[column_of[i]];
    for (int j = 0; j < m; ++j) if (seen_column[j]) v[j] -= least - shortest[j];
    for (int j = sink, i = -1; i != current;) {
      i = path[j];
      row_of[j] = i;
      std::swap(column_of[i], j);
    }
  }
  std::vector<std::pair<int, int>> pairs;
  for (int row = 0; row < rows; ++row) {
    int column = swapped ? row_of[row] : column_of[row];
    if (column >= 0) pairs.emplace_back(row, column);
  }
  return pairs;
}

}  // namespace cdmpp
