//! The text below the options of a help: one source, laid out for a screen's
//! width and for man.
//!
//! A block is what blank lines enclose. In it a line that begins at the margin is
//! prose or a heading, one after two blanks an item: a term and, after two blanks
//! more, what it means. An item without a meaning is a command to copy, and no
//! line break of ours goes into it.

use clap::Command;

use crate::inside::screen::Screen;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Prose(String),
    /// The term with the blanks behind it, and what it means.
    Item(String, String),
}

/// The program with its commands' texts laid out for this width.
pub fn fitted(program: Command, screen: Screen) -> Command {
    const WIDEST: usize = 100;
    let screen = Screen { width: screen.width.min(WIDEST), ..screen };
    let text = program.get_after_long_help().map(ToString::to_string);
    let mut program = program.term_width(screen.width);
    if let Some(text) = text {
        program = program.after_long_help(for_screen(&text, screen));
    }
    let names: Vec<String> = program.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        program = program.mut_subcommand(name, |command| fitted(command, screen));
    }
    program
}

fn for_screen(text: &str, screen: Screen) -> String {
    let block = |block: &str| {
        let mut out = String::new();
        for part in parts(block) {
            match part {
                Part::Prose(text) => out += &screen.sentence("", 0, &text),
                Part::Item(command, text) if text.is_empty() => {
                    out += &format!("  {command}\n");
                }
                Part::Item(term, text) => {
                    let term = format!("  {term}");
                    let indent = term.chars().count();
                    let fits = indent + text.chars().count() <= screen.width;
                    out += &match fits || indent <= screen.width / 2 {
                        true => screen.sentence(&term, indent, &text),
                        // No room beside a long command.
                        false => {
                            format!("{}\n{}", term.trim_end(), screen.sentence("", 6, &text))
                        }
                    };
                }
            }
        }
        out
    };
    text.split("\n\n").map(block).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// The same as sections of a man page.
pub fn for_man(text: &str) -> String {
    let mut out = String::new();
    for block in text.split("\n\n") {
        let (section, block) = match block.split_once(':') {
            Some(("Exit status", rest)) => ("EXIT STATUS", rest),
            Some(("Example" | "Examples", rest)) => ("EXAMPLES", rest),
            Some(("Environment", rest)) => ("ENVIRONMENT", rest),
            _ => ("NOTES", block),
        };
        out += &format!(".SH \"{section}\"\n");
        for part in parts(block.strip_prefix([' ', '\n']).unwrap_or(block)) {
            match part {
                Part::Prose(text) => out += &format!(".PP\n{}\n", roff(&text)),
                Part::Item(command, text) if text.is_empty() => {
                    out += &format!(".PP\n.nf\n{}\n.fi\n", roff(&command));
                }
                Part::Item(term, text) => {
                    out += &format!(".TP\n{}\n{}\n", roff(term.trim_end()), roff(&text));
                }
            }
        }
    }
    out
}

fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

fn parts(block: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for line in block.lines() {
        let text = line.trim_start();
        match (line.len() - text.len(), parts.last_mut()) {
            (0, Some(Part::Prose(prose))) => {
                *prose += " ";
                *prose += text;
            }
            (0, _) => parts.push(Part::Prose(text.to_owned())),
            (3.., Some(Part::Item(_, meaning))) => {
                *meaning += " ";
                *meaning += text;
            }
            _ => {
                let term = text.find("  ").unwrap_or(text.len());
                let gap = text[term..].len() - text[term..].trim_start().len();
                let (term, meaning) = text.split_at(term + gap);
                parts.push(Part::Item(term.to_owned(), meaning.to_owned()));
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Some prose that is
broken at will.

Exit status:
  0  all is well
  1  it is not, and a
     second line says more
  126, 127  neither

Examples:
  gpu-align verify --expect GPU-8521313e-ac61-4b15-8300-36430748cd46 -- ./app
  gpu-align show    what 'it' shows";

    #[test]
    fn a_narrow_screen_hangs_items_and_leaves_commands_whole() {
        let text = for_screen(TEXT, Screen { width: 40, colours: false });
        assert_eq!(
            text,
            "\
Some prose that is broken at will.

Exit status:
  0  all is well
  1  it is not, and a second line says
     more
  126, 127  neither

Examples:
  gpu-align verify --expect GPU-8521313e-ac61-4b15-8300-36430748cd46 -- ./app
  gpu-align show    what 'it' shows"
        );
    }

    #[test]
    fn man_has_sections() {
        let page = for_man(TEXT);
        assert!(page.starts_with(".SH \"NOTES\"\n.PP\nSome prose that is broken at will.\n"));
        assert!(page.contains(".SH \"EXIT STATUS\"\n.TP\n0\nall is well\n.TP\n1\n"), "{page}");
        assert!(page.contains(".nf\ngpu\\-align verify \\-\\-expect"), "{page}");
        assert!(page.ends_with(".TP\ngpu\\-align show\nwhat \\(aqit\\(aq shows\n"), "{page}");
    }
}
