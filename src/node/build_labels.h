// What BuildInfo() says, as labels.
#pragma once

#include "node/metrics.h"

namespace terrace {

// Of the metric terrace_build_info.
MetricLabels BuildLabels();

}  // namespace terrace
