"""The kernel: runs an agent's Python and speaks frames with the companion.

```text
main          puts the parts together       serve       one request after another
template      forks kernels of itself       offspring   the forks that takes
parent        what it owes its parent       ending      the kernel's own end
frame         length and JSON               wire        frames on the Unix socket
pipes         fds 1 and 2                   streams     sys.stdout and sys.stderr
turns         keeps channels in order       fork        what a child must not do
shell         IPython without ZMQ           cell        one execute, until done
user_code     where interrupts strike       interrupt   SIGINT, only where it may
loop          the one asyncio loop          errors      exceptions as plain text
display       results and displays          figures     those that are open
history       inputs within a budget        sources     cells' lines in a budget
questions     answered by one reply         fields      a request's, checked
variables     a table of the namespace      preview     an object in one line
assistance    completion and help           extensions  operations of this body
runtime       for the user's namespace      resources   objects, made again
command_shell asks the companion            refusals    input() and exit()
packages      the overlay of installs     cryo        objects on disk, and back
```

It only listens; whoever connects first is served until they leave, and the state stays. It starts
no thread, reads none of its own pipes and opens no file of the user's, so that it can be dumped.
"""

BODY_VERSION = "0.1.0"
PROTOCOL = 1
