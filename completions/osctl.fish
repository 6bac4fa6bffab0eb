complete --keep-order --exclusive --command osctl --arguments "(COMPLETE=fish osctl -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
