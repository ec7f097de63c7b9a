//! How the commands for users look: tables that fit the screen, wrapped
//! sentences, colours on a terminal only.

use std::fmt::Write;
use std::io::{self, IsTerminal};

/// Where a text goes.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub width: usize,
    pub colours: bool,
}

/// What is printed to a file or a pipe fits this.
const WIDTH: usize = 100;
/// No table can be squeezed further.
const NARROWEST: usize = 40;

impl Screen {
    /// Standard output's: the terminal's width, `COLUMNS` where it is set.
    pub fn stdout() -> Screen {
        let stdout = io::stdout();
        let window = || {
            let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
            (size.ws_col > 0).then_some(usize::from(size.ws_col))
        };
        let window = stdout.is_terminal().then(window);
        Screen::of(window, |name| std::env::var(name).ok())
    }

    /// That of a terminal (`None` within: of unknown width), or of a file or a
    /// pipe, under an environment.
    fn of(terminal: Option<Option<usize>>, env: impl Fn(&str) -> Option<String>) -> Screen {
        let columns = env("COLUMNS").and_then(|columns| columns.parse().ok());
        let set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
        let plain = set("NO_COLOR") || env("TERM").is_some_and(|term| term == "dumb");
        Screen {
            width: columns.or(terminal.flatten()).unwrap_or(WIDTH).max(NARROWEST),
            colours: terminal.is_some() && !plain,
        }
    }

    pub fn good(self, text: &str) -> String {
        self.painted("32", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.painted("1;31", text)
    }

    pub fn faint(self, text: &str) -> String {
        self.painted("2", text)
    }

    fn painted(self, code: &str, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    /// A sentence in lines of the screen's width, those after the first indented.
    pub fn sentence(self, first: &str, indent: usize, text: &str) -> String {
        self.wrapped(format!("{first:indent$}"), indent, text)
    }

    /// An entry of a list in lines of the screen's width, those after the first
    /// further in.
    pub fn entry(self, text: &str) -> String {
        self.wrapped("  ".into(), 6, text)
    }

    /// Facts in indented lines, none broken that fits a line of its own.
    pub fn facts(self, indent: usize, facts: &[String], separator: &str) -> String {
        let mut lines: Vec<String> = Vec::new();
        for fact in facts {
            match lines.last_mut() {
                Some(line)
                    if indent + line.chars().count() + separator.len() + fact.chars().count()
                        <= self.width =>
                {
                    *line += separator;
                    *line += fact;
                }
                _ => lines.push(fact.clone()),
            }
        }
        lines.iter().map(|line| self.sentence("", indent, line)).collect()
    }

    fn wrapped(self, mut line: String, indent: usize, text: &str) -> String {
        // Names and values in it may be anybody's.
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let mut out = String::new();
        let mut empty = true;
        for (blank, part) in text.split(' ').flat_map(|word| parts(word, self.width - indent)) {
            let gap = usize::from(blank && !empty);
            if !empty && line.chars().count() + gap + part.chars().count() > self.width {
                let _ = writeln!(out, "{}", line.trim_end());
                line = " ".repeat(indent);
                empty = true;
            }
            if blank && !empty {
                line.push(' ');
            }
            line.push_str(part);
            empty = false;
        }
        let _ = writeln!(out, "{}", line.trim_end());
        out
    }

    /// A table. Columns that do not fit follow below their row, each with its
    /// name.
    pub fn table(self, heads: &[Head], rows: &[Vec<String>]) -> String {
        self.table_with(heads, rows, |_| String::new())
    }

    /// A table with more lines below each row, by the row's place.
    pub fn table_with(
        self,
        heads: &[Head],
        rows: &[Vec<String>],
        below: impl Fn(usize) -> String,
    ) -> String {
        const GAP: usize = 1;
        const INDENT: usize = 5;
        let widths: Vec<usize> = heads
            .iter()
            .enumerate()
            .map(|(i, head)| {
                let cells = rows.iter().map(|row| row[i].chars().count());
                cells.max().unwrap_or(0).max(head.name.len())
            })
            .collect();
        let mut used = 0;
        let fitting = widths
            .iter()
            .take_while(|width| {
                used += *width + GAP;
                used - GAP <= self.width
            })
            .count()
            .max(1);
        let mut out = String::new();
        let names: Vec<String> = heads.iter().map(|head| head.name.to_owned()).collect();
        for (place, row) in std::iter::once(&names).chain(rows).enumerate() {
            let mut line = String::new();
            for (i, cell) in row.iter().take(fitting).enumerate() {
                let pad = " ".repeat(widths[i] - cell.chars().count());
                let (before, after) = if heads[i].right { (&*pad, "") } else { ("", &*pad) };
                let _ = write!(line, "{before}{cell}{after} ");
            }
            let _ = writeln!(out, "{}", line.trim_end());
            if place == 0 {
                continue;
            }
            let rest: Vec<String> = (fitting..heads.len())
                .filter(|&i| !row[i].is_empty())
                .map(|i| format!("{} {}", heads[i].name.trim(), row[i].trim()))
                .collect();
            if !rest.is_empty() {
                out += &self.facts(INDENT, &rest, "  ");
            }
            out += &below(place - 1);
        }
        out
    }
}

/// A word, and whether a blank goes before it; a list too long for a line in
/// parts that end with its commas, and a variable's name apart from it.
fn parts(word: &str, room: usize) -> Vec<(bool, &str)> {
    if word.chars().count() <= room {
        return vec![(true, word)];
    }
    word.split_inclusive([',', '=']).enumerate().map(|(i, part)| (i == 0, part)).collect()
}

/// A column's name, and whether its cells are numbers.
#[derive(Clone, Copy)]
pub struct Head {
    pub name: &'static str,
    pub right: bool,
}

pub const fn number(name: &'static str) -> Head {
    Head { name, right: true }
}

pub const fn word(name: &'static str) -> Head {
    Head { name, right: false }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    match bytes >> 30 {
        0 => format!("{} MiB", bytes >> 20),
        gib if bytes % (1 << 30) == 0 => format!("{gib} GiB"),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// `1 card`, `3 cards`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(width: usize) -> Screen {
        Screen { width, colours: false }
    }

    #[test]
    fn what_does_not_fit_follows_below_its_row() {
        let heads = [number("cuda"), word("uuid"), word("said by")];
        let rows = [vec!["0".into(), "GPU-0".repeat(6), "kernel CUDA".into()]];
        let wide = screen(100).table(&heads, &rows);
        assert_eq!(wide.lines().count(), 2);
        let narrow = screen(40).table(&heads, &rows);
        assert!(narrow.ends_with("\n     said by kernel CUDA\n"), "{narrow}");
        assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
    }

    #[test]
    fn colours_are_for_terminals_and_no_color_is_heard() {
        let colours = |terminal, name: &'static str, value: &'static str| {
            Screen::of(terminal, |asked| (asked == name).then(|| value.to_owned())).colours
        };
        assert!(colours(Some(None), "TERM", "xterm"));
        assert!(colours(Some(None), "NO_COLOR", ""));
        assert!(!colours(Some(None), "NO_COLOR", "1"));
        assert!(!colours(Some(None), "TERM", "dumb"));
        assert!(!colours(None, "TERM", "xterm"));
    }

    #[test]
    fn the_width_is_the_terminals_unless_columns_says_another() {
        let width = |terminal, columns: Option<&'static str>| {
            Screen::of(terminal, |asked| columns.filter(|_| asked == "COLUMNS").map(str::to_owned))
                .width
        };
        assert_eq!(width(None, None), 100);
        assert_eq!(width(Some(Some(72)), None), 72);
        assert_eq!(width(Some(Some(72)), Some("90")), 90);
        assert_eq!(width(Some(Some(72)), Some("many")), 72);
        assert_eq!(width(None, Some("1")), NARROWEST);
    }

    #[test]
    fn an_entry_hangs_and_its_name_may_stand_alone() {
        let text = screen(40).entry(&format!("CUDA_VISIBLE_DEVICES={}", ["GPU-0"; 6].join(",")));
        assert_eq!(text, "  CUDA_VISIBLE_DEVICES=GPU-0,GPU-0,\n      GPU-0,GPU-0,GPU-0,GPU-0\n");
        let text = screen(40).entry(&format!("CUDA_VISIBLE_DEVICES={}", "x".repeat(34)));
        assert!(text.lines().all(|line| line.len() <= 40), "{text}");
    }

    #[test]
    fn sentences_wrap_between_words() {
        let text = screen(40).sentence("ok", 6, "one two three four five six seven eight nine ten");
        assert_eq!(text, "ok    one two three four five six seven\n      eight nine ten\n");
        assert_eq!(screen(40).sentence("", 0, "a\x1b[2J\nb"), "a?[2J?b\n");
        let list = screen(40).sentence("", 0, &["GPU-0"; 9].join(","));
        assert_eq!(list, "GPU-0,GPU-0,GPU-0,GPU-0,GPU-0,GPU-0,\nGPU-0,GPU-0,GPU-0\n");
    }
}
