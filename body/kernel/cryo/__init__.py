"""Cryo: the namespace's objects, stored on disk and brought back, variable by variable.

```text
store     namespace → a generation     reload    a generation → namespace
stream    one pickle, one memo         slow      its readers, and what they do after a failure
deep      for what nests too deep      rules     how each kind of object is told
values    functions and classes        make      what a stream calls to make them again
recipes   loggers, locks, views, …     arrays    numpy and `array`, out of band
opened    files                        weak      references that keep nothing
hints     what annotations are made of  refusal   why a kind can't be stored
live      what every kernel has        culprit   what kept a variable from being saved
manifest  what is stored, sealed       disk      a folder that is written beside its place
writer    pieces with checksums        reader    the same, and nothing without its checksum
slack     memory that nobody uses      rows      what needs no memo
receipt   a row for each variable      around    versions, packages, sources of modules
submodules  what `import a.b` has loaded besides `a`
```

All variables go through one pickler with one memo, so what they share and how they point at each
other stays. A variable that fails is cut out of stream and memo, and costs the others nothing.

Written beside, synced and renamed by the kernel itself, so that no byte travels through a socket;
names, numbers and how many are kept is the companion's business.
"""
