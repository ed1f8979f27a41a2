# Adam imports it when first made, which leaves the frames around it, with the learner in them, to the garbage collector:
# too late for what bcl/device.py promises.
import torch._dynamo  # noqa: F401
