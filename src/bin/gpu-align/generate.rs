//! Man pages and shell completions, from the same descriptions as `--help`: for
//! `make install` and packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::help;

/// Write man pages and shell completions below a folder like /usr/share
#[derive(Args)]
pub struct Generate {
    /// Gets man/man1, bash-completion/completions, zsh/site-functions and
    /// fish/vendor_completions.d
    folder: PathBuf,
}

const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/gpu-align"),
    (Shell::Zsh, "zsh/site-functions/_gpu-align"),
    (Shell::Fish, "fish/vendor_completions.d/gpu-align.fish"),
];

impl Generate {
    pub fn run(self, program: Command) -> anyhow::Result<ExitCode> {
        let program = for_people(program);
        for (shell, path) in COMPLETIONS {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut program.clone(), "gpu-align", &mut text);
            write(&self.folder.join(path), &text)?;
        }
        for (name, page) in pages(&program)? {
            write(&self.folder.join("man/man1").join(name), &page)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The program without its hidden commands, which completions would offer.
fn for_people(program: Command) -> Command {
    let mut shown = Command::new("gpu-align").version(env!("CARGO_PKG_VERSION"));
    shown = shown.about(program.get_about().cloned().unwrap_or_default());
    shown = shown.after_long_help(program.get_after_long_help().cloned().unwrap_or_default());
    shown = shown.subcommand_required(true);
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        shown = shown.subcommand(command.clone());
    }
    shown
}

/// One page for the program, one for each command.
fn pages(program: &Command) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    for command in std::iter::once(&program).chain(program.get_subcommands()) {
        let name = match command.get_name() {
            "gpu-align" => "gpu-align".to_owned(),
            command => format!("gpu-align-{command}"),
        };
        let mut page = Vec::new();
        let described = command.clone().display_name(name.clone());
        let source = concat!("gpu-align ", env!("CARGO_PKG_VERSION"));
        clap_mangen::Man::new(described).title(name.clone()).source(source).render(&mut page)?;
        let page =
            with_usage(&String::from_utf8(page)?, &command.clone().render_usage().to_string());
        pages.push((format!("{name}.1"), with_sections(&page, command).into_bytes()));
    }
    Ok(pages)
}

/// Puts the usage of `--help` into the synopsis: clap_mangen's own leaves out the values and the
/// `--` without which the command's options would be read as ours.
fn with_usage(page: &str, usage: &str) -> String {
    const SYNOPSIS: &str = ".SH SYNOPSIS\n";
    let Some((before, synopsis)) = page.split_once(SYNOPSIS) else { return page.to_owned() };
    let after = synopsis.find("\n.SH ").map_or("", |end| &synopsis[end + 1..]);
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    format!("{before}{SYNOPSIS}{usage}\n{after}")
}

/// Puts our own sections where clap_mangen has one, filled, for all of them.
fn with_sections(page: &str, command: &Command) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let Some((before, extra)) = page.split_once(EXTRA) else { return page.to_owned() };
    let after = extra.find("\n.SH ").map_or("", |end| &extra[end + 1..]);
    let also = match command.get_name() {
        "gpu-align" => "",
        _ => ".SH \"SEE ALSO\"\ngpu\\-align(1)\n",
    };
    format!("{before}{}{also}{after}", help::for_man(&text))
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let why = || format!("{} cannot be written; look at the folder's owner", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(why)?;
    fs::write(path, bytes).with_context(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arguments;
    use crate::inside::screen::Screen;
    use clap::CommandFactory;

    const EXAMPLES: [&str; 7] =
        ["gpu-align", "srun", "eval", "mpirun", "torchrun", "sudo", "SLURM_CONF="];

    #[test]
    fn every_command_has_a_page_and_a_completion_and_hidden_ones_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let generate = Generate { folder: folder.path().into() };
        generate.run(Arguments::command()).unwrap();
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            let page = folder.path().join(format!("man/man1/gpu-align-{name}.1"));
            assert_eq!(page.exists(), !command.is_hide_set(), "{name}");
            for (_, path) in COMPLETIONS {
                if !command.is_hide_set() {
                    assert!(read(path).contains(name), "{name} in {path}");
                }
            }
        }
        assert!(!read("bash-completion/completions/gpu-align").contains("generate"));
        let page = read("man/man1/gpu-align-verify.1");
        assert!(page.contains(".SH \"EXIT STATUS\"") && page.contains("rank=3,1"));
        assert!(page.ends_with(".SH \"SEE ALSO\"\ngpu\\-align(1)\n"), "{page}");
        let synopsis =
            ".SH SYNOPSIS\ngpu\\-align verify [OPTIONS] [\\-\\- <COMMAND>...]\n.SH DESCRIPTION";
        assert!(page.contains(synopsis), "{page}");
    }

    /// The help of every command says how it is used and how it ends, and of every option and
    /// argument what it is.
    #[test]
    fn every_help_has_examples_and_exit_codes() {
        for width in [100, 80, 60] {
            every_help(width);
        }
    }

    fn every_help(width: usize) {
        let screen = Screen { width, colours: false };
        let mut program = help::fitted(for_people(Arguments::command()), screen);
        let help = program.render_long_help().to_string();
        let mut helps = vec![("gpu-align".to_owned(), help)];
        for command in program.get_subcommands_mut().filter(|c| c.get_name() != "help") {
            let name = command.get_name().to_owned();
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name}: {}", argument.get_id());
            }
            helps.push((name, command.render_long_help().to_string()));
        }
        for (name, help) in helps {
            assert!(help.contains("\nExample") && help.contains("\nExit status:"), "{name}");
            // A command to copy is not broken.
            let prose = |line: &&str| {
                !line
                    .trim_start()
                    .split(' ')
                    .next()
                    .is_some_and(|word| EXAMPLES.iter().any(|e| word.starts_with(e)))
            };
            for line in help.lines().filter(prose) {
                assert!(line.chars().count() <= width, "{name}: {line}");
            }
        }
    }
}
