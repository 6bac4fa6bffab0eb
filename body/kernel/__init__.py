"""The kernel: runs an agent's Python and speaks frames with the companion.

```text
main     puts the parts together      serve    one request after another
template kernels by fork              offspring  the forks it takes
frame    length and JSON              wire     frames on the Unix socket
pipes    fds 1 and 2, and their kept ends
streams  sys.stdout and sys.stderr    turns    keeps streams and frames in order
shell    IPython without ZMQ          cell     one execute, from started to done
display  results and displays         errors   exceptions as plain text
history  inputs within a budget       sources  cells' lines within a budget
loop     the one asyncio loop         interrupt  SIGINT, only where it may strike
fork     what a child must not do     refusals  input() and exit()
packages the overlay of the user's installs
```

It only listens; whoever connects first is served until they leave, and the state stays. It starts
no thread, reads none of its own pipes and opens no file of the user's, so that it can be dumped.
"""

BODY_VERSION = "0.1.0"
PROTOCOL = 1
