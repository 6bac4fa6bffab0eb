//! A session's context that outlives the container: only the changes of the session, without the inherited environment.
//! So a later container's `PATH` and keys take effect, and the environment passed to this container is not written to
//! disk.

use super::context::{PackedContext, ShellContext, is_declaration};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The environment of the first command of a session, by name.
pub(super) type InheritedEnvironment = BTreeMap<Vec<u8>, Vec<u8>>;

/// A context without the inherited environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RetainedContext {
    context: PackedContext,
    /// Inherited variables that were unset. A name that is not UTF-8 is not a bash variable.
    gone: Vec<String>,
}

impl RetainedContext {
    pub(super) fn from_context(context: &ShellContext, environment: &InheritedEnvironment) -> Self {
        let mut context = context.clone();
        let mut gone = Vec::new();
        if let Some(definitions) = context.definitions_mut() {
            let (head, tail) = split_declarations(definitions);
            let names: Vec<&[u8]> = tail.iter().filter_map(|line| variable_name(line)).collect();
            let missing = environment
                .keys()
                .filter(|n| !names.contains(&n.as_slice()));
            gone = missing
                .filter_map(|n| String::from_utf8(n.clone()).ok())
                .collect();
            let own = tail
                .into_iter()
                .filter(|line| !is_inherited(line, environment));
            let own: Vec<u8> = own.flatten().copied().collect();
            *definitions = [head, &own].concat();
        }
        Self {
            context: context.pack(),
            gone,
        }
    }

    /// # Errors
    /// When the context is damaged.
    pub(super) fn restore_context(
        self,
        environment: &InheritedEnvironment,
        home: &Path,
    ) -> io::Result<ShellContext> {
        let Self { context, gone } = self;
        let mut context = ShellContext::unpack_or_home(context, home)?;
        if let Some(definitions) = context.definitions_mut() {
            let (head, tail) = split_declarations(definitions);
            let names: Vec<&[u8]> = tail.iter().filter_map(|line| variable_name(line)).collect();
            let inherited = environment.iter().filter(|(key, _)| {
                let is_ours = names.contains(&key.as_slice());
                let is_gone = gone.iter().any(|name| name.as_bytes() == *key);
                !is_ours && !is_gone && is_variable_name(key)
            });
            // In bash's format and position, so that the next save recognizes them as inherited.
            let inherited: Vec<u8> = inherited
                .flat_map(|(key, value)| format_declaration(key, value))
                .collect();
            *definitions = [head, &inherited, &tail.concat()].concat();
        }
        Ok(context)
    }
}

/// Bash's output before its variables, and one line for each variable.
pub(super) fn split_declarations(definitions: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let lines: Vec<&[u8]> = definitions.split_inclusive(|byte| *byte == b'\n').collect();
    // Declarations come last, so a line of a function that looks like a declaration does not count.
    let tail = lines.iter().rev().take_while(|line| is_declaration(line));
    let count = tail.count();
    let (head, tail) = lines.split_at(lines.len() - count);
    let length = head.iter().map(|line| line.len()).sum();
    (&definitions[..length], tail.to_vec())
}

/// The name of the variable that a line declares.
fn variable_name(line: &[u8]) -> Option<&[u8]> {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let declared = words.nth(2)?;
    declared.split(|byte| b"=\n".contains(byte)).next()
}

fn is_variable_name(name: &[u8]) -> bool {
    name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && name.first().is_some_and(|b| !b.is_ascii_digit())
}

/// Whether a variable has its inherited value. A variable that bash writes in another form is kept.
fn is_inherited(line: &[u8], environment: &InheritedEnvironment) -> bool {
    let Some(name) = variable_name(line) else {
        return false;
    };
    let Some(value) = environment.get(name) else {
        return false;
    };
    line == format_declaration(name, value)
}

/// An exported variable in bash's format: on one line, whatever its value contains.
fn format_declaration(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut line = [b"declare -x ", name, b"="].concat();
    let has_control = value.iter().any(u8::is_ascii_control);
    let (open, escaped, close): (&[u8], &[u8], _) = match has_control {
        false => (b"\"", b"\"$\\`", b"\"\n"),
        true => (b"$'", b"'\\", b"'\n"),
    };
    line.extend_from_slice(open);
    for byte in value {
        match byte {
            0x07 => line.extend_from_slice(b"\\a"),
            0x08 => line.extend_from_slice(b"\\b"),
            0x0b => line.extend_from_slice(b"\\v"),
            0x0c => line.extend_from_slice(b"\\f"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\t' => line.extend_from_slice(b"\\t"),
            b'\r' => line.extend_from_slice(b"\\r"),
            0x1b => line.extend_from_slice(b"\\E"),
            byte if byte.is_ascii_control() => line.extend(format!("\\{byte:03o}").bytes()),
            byte if escaped.contains(byte) => line.extend([b'\\', *byte]),
            byte => line.push(*byte),
        }
    }
    line.extend_from_slice(close);
    line
}

#[cfg(test)]
mod tests {
    use super::super::context::{ShellContext, ShellFolder};
    use super::{InheritedEnvironment, RetainedContext};
    use std::path::Path;

    fn environment(all: &[(&str, &str)]) -> InheritedEnvironment {
        let each = all.iter();
        each.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn retained_context_merges_variables() {
        let old = environment(&[
            ("PATH", "/old"),
            ("KEY", "s\"ecret"),
            ("UNSET", "1"),
            ("MINE", "theirs"),
        ]);
        let left: &[u8] = b"\0/tmp\0here\0set +o xtrace\n\0f () \n{ \n    cat <<E\ndeclare -x PATH=\"/old\"\nE\n}\ndeclare -f f\ndeclare -x KEY=\"s\\\"ecret\"\ndeclare -x MINE=\"mine\"\ndeclare -x PATH=\"/old\"\ndeclare -- plain=\"1\"\n\0";
        let context = ShellContext::new("/".into())
            .unwrap()
            .next_context(left)
            .unwrap();
        let retained = RetainedContext::from_context(&context, &old);
        let text = serde_json::to_string(&retained).unwrap();
        let retained: RetainedContext = serde_json::from_str(&text).unwrap();
        let new = environment(&[
            ("PATH", "/new"),
            ("UNSET", "2"),
            ("MINE", "theirs"),
            ("ADDED", "it's $5"),
            ("LINES", "a\n'b\x01"),
        ]);
        let restored = retained
            .clone()
            .restore_context(&new, Path::new("/"))
            .unwrap();
        let script = String::from_utf8(restored.start_script("L", "O")).unwrap();
        for there in [
            "declare -x PATH=\"/new\"\n",
            "declare -x ADDED=\"it's \\$5\"\n",
            "declare -x LINES=$'a\\n\\'b\\001'\n",
            "declare -x MINE=\"mine\"\n",
            "plain=\"1\"",
            "cat <<E\ndeclare -x PATH=\"/old\"\nE\n",
        ] {
            assert!(script.contains(there), "{there} is missing in {script}");
        }
        for gone in ["ecret", "UNSET", "theirs"] {
            assert!(!script.contains(gone), "{gone} is in {script}");
        }
        assert_eq!(restored.cwd, Path::new("/tmp"));
        // Saved again before a command has run, the context is the same as before.
        assert_eq!(RetainedContext::from_context(&restored, &new), retained);
    }

    #[test]
    fn missing_folder_is_replaced_by_home() {
        let mut context = ShellContext::new("/".into()).unwrap();
        context.set_variable("A", Some("1"));
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new("/");
        context.change_folder(ShellFolder::resolve(folder.path(), root, root).unwrap());
        let retained = RetainedContext::from_context(&context, &InheritedEnvironment::new());
        drop(folder);
        let restored = retained
            .restore_context(&InheritedEnvironment::new(), Path::new("/"))
            .unwrap();
        assert_eq!(restored.cwd, Path::new("/"));
        let script = String::from_utf8(restored.start_script("L", "O")).unwrap();
        assert!(restored.is_fresh() && script.contains("A='1'"), "{script}");
    }
}
