"""Cryo: stores the objects of the namespace on disk and loads them back, variable by variable.

```text
store        namespace → a generation        reload        a generation → namespace
stream       one pickle with one memo        loader        readers of that stream
recursion    pickling of deep nesting        tolerant_reader  reads on after a failure
rules        the rule of each kind           make          functions that a stream calls
values       functions and classes           recipes       loggers, locks, views, …
arrays       numpy and `array`, out of band  builtin_subclasses  classes over builtin ones
open_files   open files                      weakrefs      weak references
type_hints   parts of annotations            unsaveable    the refusal to store a kind
anchors      objects that each kernel has    failing_object  the object that failed, and why
manifest     the sealed list of content      disk          a folder that is renamed when complete
writer       pieces with checksums           reader        pieces with verified checksums
heap_trim    unused memory                   rows          long lists without a memo
receipt      a row for each variable         environment   versions, packages, module sources
verify       loading back before the receipt compare       originals with loaded objects
submodules   what `import a.b` has loaded in addition to `a`
```

All variables go through one pickler with one memo, so their shared parts and references are kept. A
variable that fails is removed from stream and memo and does not affect the others.

The kernel itself writes, syncs and renames the files, so that no content travels through a socket.
The companion chooses names and numbers and removes old generations.
"""
