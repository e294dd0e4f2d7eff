// The methods of Device that read rows of logits.
#pragma once

#include "arrays.h"
#include "device.h"

namespace legato {

void bind_sampling(nb::class_<Device>& device);

}  // namespace legato
