//! Shell completion. Candidates come from inside and from a project that the agent writes, so they are untrusted.
//!
//! zsh, fish and elvish quote inserted text. bash and PowerShell insert it unchanged, so candidates for them are quoted
//! here, also for completion scripts of earlier versions. A candidate with characters that a terminal interprets or a
//! reader does not see is left out for every shell.

use crate::protocol::text_sanitizer::is_printable;
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

/// The completers of all shells.
pub(crate) const SHELL_COMPLETERS: Shells<'static> = Shells(&[
    &CheckedCompleter {
        shell: &Bash,
        quote: quote_for_bash,
    },
    &CheckedCompleter {
        shell: &Zsh,
        quote: str::to_owned,
    },
    &CheckedCompleter {
        shell: &Fish,
        quote: str::to_owned,
    },
    &CheckedCompleter {
        shell: &Powershell,
        quote: quote_for_powershell,
    },
    &CheckedCompleter {
        shell: &Elvish,
        quote: str::to_owned,
    },
]);

/// The bash script. The script of clap splits candidates without quotes, so that bash expands patterns in them. In bash
/// a colon also ends a word, which would split `os:/PATH`.
const BASH_SCRIPT: &str = r#"
_clap_complete_osctl() {
    local IFS=$'\013'
    local space=true
    if compopt +o nospace 2> /dev/null; then
        space=false
    fi
    local words=("${COMP_WORDS[@]}")
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        words[COMP_CWORD]="$2"
    fi
    local found
    if ! found=$( \
        _CLAP_IFS="$IFS" \
        _CLAP_COMPLETE_INDEX="$COMP_CWORD" \
        _CLAP_COMPLETE_COMP_TYPE="$COMP_TYPE" \
        _CLAP_COMPLETE_SPACE="$space" \
        COMPLETE="bash" \
        "osctl" -- "${words[@]}" \
    ); then
        unset COMPREPLY
        return
    fi
    # `COMPREPLY=( $found )` would expand patterns.
    IFS=$'\013' read -r -d '' -a COMPREPLY < <(printf '%s' "$found")
    if [[ $space == false ]] && [[ "${COMPREPLY-}" =~ [=/:]$ ]]; then
        compopt -o nospace
    fi
}
if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -o nospace -o bashdefault -o nosort -F _clap_complete_osctl osctl
else
    complete -o nospace -o bashdefault -F _clap_complete_osctl osctl
fi
COMP_WORDBREAKS=${COMP_WORDBREAKS//:}
"#;

struct CheckedCompleter {
    shell: &'static dyn EnvCompleter,
    quote: fn(&str) -> String,
}

impl CheckedCompleter {
    fn is_bash(&self) -> bool {
        self.shell.name() == Bash.name()
    }
}

impl EnvCompleter for CheckedCompleter {
    fn name(&self) -> &'static str {
        self.shell.name()
    }

    fn is(&self, name: &str) -> bool {
        self.shell.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        match self.is_bash() {
            true => buf.write_all(BASH_SCRIPT.as_bytes()),
            false => self
                .shell
                .write_registration(var, name, bin, completer, buf),
        }
    }

    fn write_complete(
        &self,
        cmd: &mut clap::Command,
        mut args: Vec<OsString>,
        current_dir: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        let variable = |name: &str| std::env::var(name).ok();
        if self.is_bash()
            && let Some(index) =
                variable("_CLAP_COMPLETE_INDEX").and_then(|i| i.parse::<usize>().ok())
            && let Some(word) = args.get_mut(index)
        {
            *word = unquote_for_bash(word);
        }
        let is_empty_word = args.last().is_some_and(|word| word.is_empty());
        let mut found = Vec::new();
        self.shell
            .write_complete(cmd, args, current_dir, &mut found)?;
        let found = String::from_utf8_lossy(&found);
        let lines = [Fish.name(), Powershell.name()].contains(&self.name());
        let separator = variable("_CLAP_IFS").filter(|ifs| !lines && !ifs.is_empty());
        let separator = separator.unwrap_or_else(|| "\n".into());
        let candidates: Vec<&str> = found.split(&separator).filter(|c| is_offered(c)).collect();
        // bash lists all candidates without groups: options would hide the names.
        let is_option = |candidate: &&str| candidate.starts_with('-');
        let has_names = candidates.iter().any(|c| !c.is_empty() && !is_option(c));
        let drops_options = self.is_bash() && is_empty_word && has_names;
        let candidates = candidates
            .into_iter()
            .filter(|c| !(drops_options && is_option(c)));
        let candidates: Vec<String> = candidates.map(|c| self.quote_candidate(c)).collect();
        buf.write_all(candidates.join(&separator).as_bytes())
    }
}

impl CheckedCompleter {
    /// Quotes a candidate, which may have its help after a tab.
    fn quote_candidate(&self, candidate: &str) -> String {
        match candidate.split_once('\t') {
            Some((value, help)) => format!("{}\t{help}", (self.quote)(value)),
            None => (self.quote)(candidate),
        }
    }
}

fn is_offered(candidate: &str) -> bool {
    // A name that is not UTF-8 can't be typed.
    candidate.split('\t').all(is_printable) && !candidate.contains('\u{fffd}')
}

/// Escapes each character that may be special, inside or outside of quotes, with a backslash.
fn quote_for_bash(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len());
    for c in value.chars() {
        if c.is_ascii() && !c.is_ascii_alphanumeric() && !"_@%+=:,./-".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

/// The value of a bash word whose last quote may be open.
fn unquote_for_bash(word: &OsStr) -> OsString {
    let Some(text) = word.to_str() else {
        return word.to_owned();
    };
    let (mut plain, mut quote) = (String::new(), None);
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => plain.extend(characters.next()),
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (c, _) => plain.push(c),
        }
    }
    plain.into()
}

/// Puts the value into single quotes, of which PowerShell knows five characters.
fn quote_for_powershell(value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || r"_-./:\=".contains(c);
    if value.chars().all(is_plain) {
        return value.into();
    }
    let mut quoted = String::from("'");
    for c in value.chars() {
        if matches!(c, '\'' | '\u{2018}'..='\u{201b}') {
            quoted.push(c);
        }
        quoted.push(c);
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::{is_offered, quote_for_bash, quote_for_powershell, unquote_for_bash};
    use proptest::prelude::any;
    use std::ffi::OsStr;

    #[test]
    fn bash_executes_no_candidate() {
        assert_eq!(
            quote_for_bash("os:/root/größe-1.csv"),
            "os:/root/größe-1.csv"
        );
        assert_eq!(
            quote_for_bash("a;touch${IFS}b;'`!\"~*"),
            r#"a\;touch\$\{IFS\}b\;\'\`\!\"\~\*"#
        );
        assert!(!is_offered("a\x1b[2J") && !is_offered("\u{202e}a") && !is_offered("a\nb"));
        assert!(is_offered("a\thelp") && is_offered(""));
    }

    #[test]
    fn a_word_within_quotes_is_completed() {
        for word in [r"os:/a\ b", "'os:/a b", "\"os:/a b", "os:'/a b'"] {
            assert_eq!(unquote_for_bash(OsStr::new(word)), "os:/a b", "{word}");
        }
    }

    #[test]
    fn powershell_executes_no_candidate() {
        assert_eq!(quote_for_powershell("--session"), "--session");
        assert_eq!(quote_for_powershell("a$(calc)"), "'a$(calc)'");
        assert_eq!(
            quote_for_powershell("a';b\u{2019};c"),
            "'a'';b\u{2019}\u{2019};c'"
        );
    }

    proptest::proptest! {
        #[test]
        fn a_quoted_candidate_is_unquoted_to_itself(name in any::<String>()) {
            let quoted = quote_for_bash(&name);
            assert_eq!(unquote_for_bash(OsStr::new(&quoted)), OsStr::new(&name));
        }
    }
}
