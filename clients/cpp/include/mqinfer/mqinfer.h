/// Inference over MQTT 5: all of the library.
#pragma once

#include "mqinfer/client.h"
