"""The acceptance on a machine with a GPU: one command there installs what was built elsewhere and proves it.

``python -m shared_build.delivery.gpu_acceptance WHEEL... --out DIR`` (see ``__main__``). The parts:

- ``installing``: a wheel is installed into a folder of its own; a source distribution is built first;
- ``checks``: the conformance checks for a device, in processes that survive a broken one;
- ``sanitizer``: the smallest cases under compute-sanitizer;
- ``timing``: each benchmark case by CUDA events, beside the copy bandwidth, eager and compiled PyTorch;
- ``record``: what came out, as one JSON file and one table.

The main process imports no torch: whatever a kernel does to its process, the record is written.
"""
