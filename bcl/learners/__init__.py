# Adam imports it when first made, which leaves the frames around it, with the learner in them, to the garbage
# collector: too late for bcl/device.py.
import torch._dynamo  # noqa: F401
