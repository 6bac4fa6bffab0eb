"""The kernel: runs an agent's Python code and exchanges frames with the companion.

```text
main          assembles the parts            serve       the request loop
template      forks kernels of itself        children    the forks that the template makes
parent        the tie to the parent process  shutdown    the kernel's exit
frame         length and JSON                wire        frames on the Unix socket
pipes         fds 1 and 2                    streams     sys.stdout and sys.stderr
ordering      order between the channels     fork_guard  limits of a forked child
shell         IPython without ZMQ            cell        one execute request
user_code     code that SIGINT interrupts    interrupt   SIGINT handling
loop          the one asyncio loop           errors      exceptions as plain text
display       results and displays           figures     open matplotlib figures
history       inputs within a limit          sources     lines of cells within a limit
queries       requests with one reply        validation  checks of request fields
variables     a table of the namespace       preview     an object in one line
completion    completion and help            extensions  operations of this body
runtime       the `runtime` object           resources   live objects with a recipe
command_shell `runtime.shell`                commands    `!command` lines in a cell
evolution     `runtime.evolve`               companion   requests to the companion
encode        JSON encoding, never fails     fast_path   cells that do not need IPython
printing      `print()` as one write         refusals    input() and exit()
packages      the overlay of installs        cryo        objects on disk
debugger      `%debug`
```

The kernel listens and serves one client at a time; its state outlives each connection. It starts no
thread, does not read its own pipes and opens no user file, so that CRIU can checkpoint the process.
"""

BODY_VERSION = "0.1.0"
PROTOCOL = 1
