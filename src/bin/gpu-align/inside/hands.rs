//! Whose hand set a variable: shell files, environment hooks, a TaskProlog, the
//! batch script, or a process between this one and the task.
//!
//! Only lines that assign one of the wanted names are ever read out, and of
//! them only that assignment.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu_align::device::clip;
use gpu_align::node::child::{self, Group};
use gpu_align::node::text;
use gpu_align::slurm::conf;
use serde::Serialize;

use super::env::{Env, command, parent_and_start};

/// Larger files set no variable that anybody would look for.
const MAX_FILE: usize = 256 << 10;
const MAX_SCRIPT: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(5);
/// Ancestors that are looked at.
const MAX_DEPTH: usize = 32;

/// An assignment in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Its path, or what it is (`the batch script`).
    pub file: String,
    /// From 1.
    pub line: usize,
    pub name: String,
    pub value: String,
}

impl std::fmt::Display for Hit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}:{} sets {}={}", self.file, self.line, self.name, self.value)
    }
}

const IN_HOME: [&str; 14] = [
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_aliases",
    ".profile",
    ".zshenv",
    ".zshrc",
    ".zprofile",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".config/fish/config.fish",
    ".pam_environment",
    ".ssh/environment",
];

const OF_THE_SITE: [&str; 7] = [
    "etc/environment",
    "etc/profile",
    "etc/bash.bashrc",
    "etc/bashrc",
    "etc/zsh/zshrc",
    "etc/zshrc",
    "etc/csh.cshrc",
];

/// The files that a shell, conda or a venv may have read on the way here.
pub fn shell_files(root: &Path, env: &Env) -> Vec<PathBuf> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let mut files = Vec::new();
    if let Some(home) = env.get("HOME") {
        files.extend(IN_HOME.map(|name| below(home).join(name)));
    }
    files.extend(["BASH_ENV", "ENV"].iter().filter_map(|name| env.get(name)).map(below));
    if let Some(venv) = env.get("VIRTUAL_ENV") {
        files.push(below(venv).join("bin/activate"));
    }
    if let Some(conda) = env.get("CONDA_PREFIX") {
        let conda = below(conda);
        files.extend(in_folder(&conda.join("etc/conda/activate.d")));
        files.push(conda.join("conda-meta/state"));
    }
    files.extend(OF_THE_SITE.map(|name| root.join(name)));
    files.extend(in_folder(&root.join("etc/profile.d")));
    files
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// The lines of these files that assign one of the names.
pub fn assignments(files: &[PathBuf], names: &[&str]) -> Vec<Hit> {
    let read = |file: &PathBuf| {
        // A FIFO or a device in the place of a file would hold us up.
        fs::metadata(file).is_ok_and(|meta| meta.is_file()).then_some(())?;
        let content = text::read(file, MAX_FILE).ok()?;
        Some(in_text(&file.display().to_string(), &content, names))
    };
    files.iter().filter_map(read).flatten().collect()
}

/// The lines of a text that assign one of the names.
pub fn in_text(file: &str, content: &str, names: &[&str]) -> Vec<Hit> {
    let mut hits = Vec::new();
    for (number, line) in content.lines().enumerate() {
        if line.trim_start().starts_with('#') {
            continue;
        }
        for &name in names {
            if let Some(value) = assigned(line, name) {
                let (file, name) = (file.to_owned(), name.to_owned());
                hits.push(Hit { file, line: number + 1, name, value: clip(value) });
            }
        }
    }
    hits
}

/// The value that a line gives to a variable, in the words of sh (`NAME=…`),
/// csh (`setenv NAME …`), fish (`set -gx NAME …`) or conda (`"NAME": "…"`).
fn assigned<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$' || c == '{';
    for (start, _) in line.match_indices(name) {
        let (before, after) = (&line[..start], &line[start + name.len()..]);
        if before.ends_with(part_of_name) {
            continue;
        }
        let first = |text: &'a str| {
            let end = text.find([' ', '\t', ';', '&', '|', ')']).unwrap_or(text.len());
            text[..end].trim_matches(['"', '\'', ','])
        };
        if let Some(value) = after.strip_prefix('=') {
            // A comparison is no assignment.
            if !value.starts_with('=') {
                return Some(first(value));
            }
        }
        let words = before.split_whitespace().rev().collect::<Vec<_>>();
        let csh = words.first() == Some(&"setenv");
        let fish =
            words.first().is_some_and(|word| word.starts_with('-')) && words.contains(&"set");
        if csh || fish {
            return Some(first(after.trim_start()));
        }
        if let Some(value) = after.strip_prefix("\": ") {
            return Some(first(value));
        }
    }
    None
}

/// Assignments in the site's TaskProlog, if slurm.conf can be read here.
pub fn task_prolog(env: &Env, names: &[&str]) -> Vec<Hit> {
    let places = env.places_of("slurm.conf");
    let Some(lines) = places.iter().find_map(|path| conf::read(path).ok()) else {
        return Vec::new();
    };
    let value = |line: &conf::Line| {
        let pairs = conf::pairs(&line.text).ok()?;
        Some(PathBuf::from(conf::value(&pairs, "TaskProlog")?))
    };
    let files: Vec<PathBuf> = lines.iter().filter_map(value).collect();
    let mut hits = assignments(&files, names);
    hits.iter_mut().for_each(|hit| hit.file.insert_str(0, "TaskProlog "));
    hits
}

/// Assignments in the job's batch script, as Slurm keeps it for its owner.
pub fn batch_script(env: &Env, names: &[&str]) -> Result<Vec<Hit>, String> {
    let Some(job) = env.get("SLURM_JOB_ID").filter(|job| job.parse::<u32>().is_ok()) else {
        return Ok(Vec::new());
    };
    let arguments = ["write", "batch_script", job, "-"];
    let pass = ["PATH", "SLURM_CONF", "HOME"];
    let environment: Vec<(&str, &OsStr)> =
        pass.iter().filter_map(|name| Some((*name, OsStr::new(env.get(name)?)))).collect();
    let scontrol = env.get("PATH").and_then(|path| {
        let mut folders = path.split(':').map(|folder| Path::new(folder).join("scontrol"));
        folders.find(|file| file.is_file())
    });
    let scontrol = scontrol.ok_or("the batch script: there is no scontrol on PATH")?;
    let output =
        child::run_with(&scontrol, &arguments, &environment, Group::Own, PATIENCE, MAX_SCRIPT)
            .map_err(|why| format!("the batch script: {why}"))?;
    match output.code {
        0 => Ok(in_text("the batch script", &String::from_utf8_lossy(&output.stdout), names)),
        // An interactive job has none.
        _ => Ok(Vec::new()),
    }
}

/// A process above this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    pub pid: u32,
    pub command: String,
    pub env: Env,
}

/// This process as it was started and those above it, as far as they were
/// started with gpu-align's mark, nearest first.
pub fn ancestors(root: &Path, pid: u32) -> Vec<Ancestor> {
    let mut found = Vec::new();
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|&pid| pid > 1 && found.len() < MAX_DEPTH) {
        let Ok(env) = Env::of_process(root, pid) else { break };
        if env.get("GPU_ALIGN_VERSION").is_none() {
            break;
        }
        let command = command(root, pid).unwrap_or_default();
        found.push(Ancestor { pid, command, env });
        next = parent_and_start(root, pid).map(|(parent, _)| parent);
    }
    found
}

/// The likely hand that gave `name` its value after gpu-align, as the end of a
/// sentence.
pub fn likely(above: &[Ancestor], hits: &[Hit], name: &str, now: Option<&str>) -> String {
    let started_otherwise = above.iter().find(|process| process.env.get(name) != now);
    let mut hands = Vec::new();
    match started_otherwise {
        Some(process) => hands.push(format!(
            "'{}' (pid {}) was started with the old value and passed on the new one",
            process.command, process.pid
        )),
        None => hands.push(
            "it was so when the task's program started, so a TaskProlog, srun --task-prolog or \
             a shell that replaced itself set it"
                .to_owned(),
        ),
    }
    hands.extend(hits.iter().filter(|hit| hit.name == name).map(Hit::to_string));
    hands.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shells_assignment_is_found_and_nothing_else() {
        let of = |line: &'static str| assigned(line, "CUDA_VISIBLE_DEVICES");
        assert_eq!(of("export CUDA_VISIBLE_DEVICES=3"), Some("3"));
        assert_eq!(of("  export A=1 CUDA_VISIBLE_DEVICES=\"0,1\"; x"), Some("0,1"));
        assert_eq!(of("CUDA_VISIBLE_DEVICES=$SLURM_LOCALID exec \"$@\""), Some("$SLURM_LOCALID"));
        assert_eq!(of("setenv CUDA_VISIBLE_DEVICES 2"), Some("2"));
        assert_eq!(of("set -gx CUDA_VISIBLE_DEVICES 1"), Some("1"));
        assert_eq!(of("echo export CUDA_VISIBLE_DEVICES=1"), Some("1"));
        assert_eq!(of("{\"env_vars\": {\"CUDA_VISIBLE_DEVICES\": \"1\"}}"), Some("1\"}}"));
        assert_eq!(of("echo $CUDA_VISIBLE_DEVICES"), None);
        assert_eq!(of("test x$CUDA_VISIBLE_DEVICES=1"), None);
        assert_eq!(of("NCUDA_VISIBLE_DEVICES=1"), None);
        assert_eq!(of("if [ CUDA_VISIBLE_DEVICES == 1 ]"), None);
    }

    #[test]
    fn comments_and_other_variables_are_not_read_out() {
        let text = "# CUDA_VISIBLE_DEVICES=1\nSECRET=x\nexport CUDA_DEVICE_ORDER=FASTEST_FIRST\n";
        let hits = in_text("f", text, &["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"]);
        assert_eq!(hits.len(), 1);
        assert_eq!(hits[0].to_string(), "f:3 sets CUDA_DEVICE_ORDER=FASTEST_FIRST");
    }

    #[test]
    fn the_files_of_a_home_and_its_environments_are_looked_at() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("home/u/.bashrc", "\nexport CUDA_VISIBLE_DEVICES=3\n");
        put("opt/env/etc/conda/activate.d/cuda.sh", "export CUDA_VISIBLE_DEVICES=0\n");
        put("etc/profile.d/site.sh", "CUDA_DEVICE_ORDER=FASTEST_FIRST\n");
        let pairs = [("HOME", "/home/u"), ("CONDA_PREFIX", "/opt/env")];
        let env = Env(pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect());
        let files = shell_files(root.path(), &env);
        let hits = assignments(&files, &["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"]);
        assert_eq!(hits.iter().map(|hit| hit.line).collect::<Vec<_>>(), [2, 1, 1]);
    }
}
