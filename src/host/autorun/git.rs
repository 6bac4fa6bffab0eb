//! Settings of a git repository that name commands.

/// The settings of the text that make git run a command, by their lower-case keys. This function parses the text
/// itself, because git may run a command while reading its configuration.
pub(super) fn find_git_commands(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    // A backslash at the end joins lines.
    let text = text.replace("\\\r\n", "").replace("\\\n", "");
    for line in text.trim_start_matches('\u{feff}').lines() {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let end = section_end(rest);
            section = section_name(&rest[..end]);
            // A setting may follow on the same line.
            line = rest.get(end + 1..).unwrap_or_default().trim();
        }
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let key = format!("{section}.{}", key.trim().to_ascii_lowercase());
        if is_command_key(&key) {
            found.push((key, value.trim().to_owned()));
        }
    }
    found
}

/// The position of the first `]` outside quotes.
fn section_end(text: &str) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ']' if !quoted => return at,
            _ => {}
        }
    }
    text.len()
}

/// Converts `filter "x"` to `filter.x`.
fn section_name(section: &str) -> String {
    match section.split_once('"') {
        Some((name, rest)) => {
            let subsection = rest.trim_end().trim_end_matches('"');
            format!("{}.{subsection}", name.trim().to_ascii_lowercase())
        }
        None => section.trim().to_ascii_lowercase(),
    }
}

/// Sections whose every setting counts: they include more settings, or each setting names a command.
const GIT_COMMAND_SECTIONS: &[&str] = &["alias", "include", "includeif", "pager"];
const GIT_CORE_KEYS: &[&str] = &[
    "alternaterefscommand",
    "askpass",
    "editor",
    "fsmonitor",
    "gitproxy",
    "hookspath",
    "pager",
    "sshcommand",
    "worktree",
];
/// Last parts of keys whose values are commands, in any section.
const GIT_COMMAND_KEYS: &[&str] = &[
    "clean",
    "cmd",
    "command",
    "defaultkeycommand",
    "driver",
    "editor",
    "external",
    "helper",
    "packobjectshook",
    "path",
    "process",
    "program",
    "proxy",
    "receivepack",
    "sendemailcmd",
    "smudge",
    "textconv",
    "tocmd",
    "uploadpack",
    "vcs",
];

fn is_command_key(key: &str) -> bool {
    let (first, rest) = key.split_once('.').unwrap_or((key, ""));
    let last = rest.rsplit('.').next().unwrap_or_default();
    match first {
        "core" => GIT_CORE_KEYS.contains(&rest),
        // `!command`
        "submodule" => last == "update",
        "url" => true,
        section => GIT_COMMAND_SECTIONS.contains(&section) || GIT_COMMAND_KEYS.contains(&last),
    }
}

#[cfg(test)]
mod tests {
    use super::find_git_commands;

    #[test]
    fn settings_that_run_a_command_are_found_in_every_notation() {
        for (text, key) in [
            ("[core]\n\tfsmonitor = x", "core.fsmonitor"),
            ("[CORE] FsMonitor=x", "core.fsmonitor"),
            ("[core]\nhooksPath = x", "core.hookspath"),
            ("[core]\nsshCommand \\\n= x", "core.sshcommand"),
            ("\u{feff}[core]\npager = x", "core.pager"),
            ("[filter \"a]b\"]\nsmudge = x", "filter.a]b.smudge"),
            ("[filter \"lfs\"]\nprocess = x", "filter.lfs.process"),
            ("[diff]\nexternal = x", "diff.external"),
            ("[diff \"p\"]\ntextconv = x", "diff.p.textconv"),
            ("[merge \"p\"]\ndriver = x", "merge.p.driver"),
            ("[credential]\nhelper = !x", "credential.helper"),
            ("[alias]\nst = !x", "alias.st"),
            ("[include]\npath = ../x", "include.path"),
            (
                "[includeIf \"gitdir:/\"]\npath = x",
                "includeif.gitdir:/.path",
            ),
            ("[gpg]\nprogram = x", "gpg.program"),
            (
                "[gpg \"ssh\"]\ndefaultKeyCommand = x",
                "gpg.ssh.defaultkeycommand",
            ),
            ("[remote \"o\"]\nuploadpack = x", "remote.o.uploadpack"),
            ("[url \"ext::x\"]\ninsteadOf = y", "url.ext::x.insteadof"),
        ] {
            let found = find_git_commands(text);
            let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(keys, [key], "{text}");
        }
        let usual = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n# fsmonitor = x\n\
                     [remote \"origin\"]\n\turl = https://x\n\tfetch = +refs/heads/*\n\
                     [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n[user]\n\tname = A\n";
        assert_eq!(find_git_commands(usual), []);
    }
}
