//! `spank-host PLUGIN STEP.json`: plays the step and prints what became of it as JSON.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

use spank_host::{Host, Step};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [plugin, step] = arguments.as_slice() else {
        eprintln!("usage: spank-host PLUGIN STEP.json (- reads the step from stdin)");
        return ExitCode::from(2);
    };
    match run(Path::new(plugin), step) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("spank-host: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(plugin: &Path, step: &str) -> io::Result<String> {
    let text = match step {
        "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            text
        }
        path => fs::read_to_string(path)?,
    };
    let step: Step = serde_json::from_str(&text)?;
    let played = Host::load(plugin, &step)?.play_as_told(&step)?;
    Ok(serde_json::to_string_pretty(&played)?)
}
