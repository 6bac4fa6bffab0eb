//! Parser from the text of a Dockerfile to instructions. It accepts only syntax that every builder reads alike.

use super::DockerfileRefusal;

/// The maximum length of an instruction: builders fail at lines longer than 64 KiB.
const MAX_INSTRUCTION_BYTES: usize = 60_000;
/// The maximum bytes and instructions of a Dockerfile: an image has at most 127 layers, and logs name each layer.
const MAX_DOCKERFILE_BYTES: usize = 1 << 20;
const MAX_DOCKERFILE_INSTRUCTIONS: usize = 500;

/// A keyword and its arguments, which may span several lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DockerfileInstruction {
    pub(super) line: usize,
    /// In upper case.
    pub(super) keyword: String,
    /// The arguments, joined as builders join them: without line ends and the backslashes before them.
    pub(super) rest: String,
}

pub(super) fn parse_instructions(
    text: &[u8],
) -> Result<Vec<DockerfileInstruction>, DockerfileRefusal> {
    let text = std::str::from_utf8(text).map_err(|e| {
        let line = text[..e.valid_up_to()].iter().filter(|b| **b == b'\n');
        DockerfileRefusal::new(line.count() + 1, "the line is not UTF-8")
    })?;
    if text.len() > MAX_DOCKERFILE_BYTES {
        return Err(DockerfileRefusal::new(
            1,
            format!("the file is longer than {MAX_DOCKERFILE_BYTES} bytes"),
        ));
    }
    let mut instructions = Vec::new();
    let mut open: Option<DockerfileInstruction> = None;
    for (index, line) in text.split('\n').enumerate() {
        let number = index + 1;
        let line = line.strip_suffix('\r').unwrap_or(line);
        check_characters(line, number)?;
        let trimmed = line.trim_matches([' ', '\t']);
        if trimmed.starts_with('#') {
            if instructions.is_empty() && open.is_none() {
                check_directive(trimmed, number)?;
            }
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        if instructions.len() == MAX_DOCKERFILE_INSTRUCTIONS {
            let why = format!("there are more than {MAX_DOCKERFILE_INSTRUCTIONS} instructions");
            return Err(DockerfileRefusal::new(number, why));
        }
        let (content, continues) = split_continuation(line, number)?;
        let mut instruction = open.take().unwrap_or(DockerfileInstruction {
            line: number,
            keyword: String::new(),
            rest: String::new(),
        });
        instruction.rest.push_str(content);
        if instruction.rest.len() > MAX_INSTRUCTION_BYTES {
            let why = format!(
                "the instruction is longer than {MAX_INSTRUCTION_BYTES} characters: put it into a script"
            );
            return Err(DockerfileRefusal::new(instruction.line, why));
        }
        match continues {
            true => open = Some(instruction),
            false => instructions.extend(finish_instruction(instruction)),
        }
    }
    instructions.extend(open.and_then(finish_instruction));
    Ok(instructions)
}

/// Refuses characters that some parser reads as a space, a line end or nothing.
fn check_characters(line: &str, number: usize) -> Result<(), DockerfileRefusal> {
    let odd = |c: char| {
        let space = c.is_whitespace() && c != ' ' && c != '\t';
        space || (c.is_control() && c != '\t') || c == '\u{feff}'
    };
    match line.chars().find(|c| odd(*c)) {
        Some(c) => {
            let why = format!("the character U+{:04X} is not allowed", u32::from(c));
            Err(DockerfileRefusal::new(number, why))
        }
        None => Ok(()),
    }
}

/// Refuses directives: with `# syntax=` another program parses the file, and `# escape=` changes how it is parsed.
fn check_directive(comment: &str, number: usize) -> Result<(), DockerfileRefusal> {
    let Some((name, _)) = comment.trim_start_matches('#').split_once('=') else {
        return Ok(());
    };
    let name = name.trim().to_ascii_lowercase();
    match ["syntax", "escape", "check"].contains(&name.as_str()) {
        true => Err(DockerfileRefusal::new(
            number,
            format!("`# {name}=` is not allowed"),
        )),
        false => Ok(()),
    }
}

/// Splits off the backslash that joins the line to the next one.
fn split_continuation(line: &str, number: usize) -> Result<(&str, bool), DockerfileRefusal> {
    let Some(content) = line.trim_end_matches([' ', '\t']).strip_suffix('\\') else {
        return Ok((line, false));
    };
    if content.ends_with('\\') {
        let why = "builders differ over two backslashes at the end of a line: put a space or a quote between them";
        return Err(DockerfileRefusal::new(number, why));
    }
    Ok((content, true))
}

fn finish_instruction(joined: DockerfileInstruction) -> Option<DockerfileInstruction> {
    let text = joined.rest.trim_matches([' ', '\t']);
    if text.is_empty() {
        return None;
    }
    let (keyword, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    Some(DockerfileInstruction {
        line: joined.line,
        keyword: keyword.to_ascii_uppercase(),
        rest: rest.trim_start_matches([' ', '\t']).to_owned(),
    })
}
