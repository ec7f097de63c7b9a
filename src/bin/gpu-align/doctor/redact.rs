//! What a page must not carry into a public issue: UUIDs, users, the host,
//! homes, and paths in which others' names may stand. A UUID keeps its first four digits, a whole one its last four too,
//! so that two cards can be told apart.

use std::path::Path;

use regex_lite::{Captures, Regex};

use super::Patient;
use super::processes::user_name;

const USER: &str = "USER";
const OTHER: &str = "OTHER";

pub struct Redaction {
    /// Text and what stands for it, longest first.
    words: Vec<(String, &'static str)>,
}

impl Redaction {
    /// Takes the users' names out of the process list, and learns what else to
    /// look for in sentences.
    pub fn of(patient: &mut Patient) -> Redaction {
        let mut words = Redaction::own_words(patient);
        for process in &mut patient.running {
            let shown = if process.own { USER } else { OTHER };
            if let Some(user) = &mut process.user {
                // A number is a user without a name, and could be anything in a sentence.
                if user.parse::<u32>().is_err() {
                    words.push((user.clone(), shown));
                }
                shown.clone_into(user);
            }
        }
        words.retain(|(text, _)| text.len() > 1 && text != "/");
        words.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Redaction { words }
    }

    fn own_words(patient: &Patient) -> Vec<(String, &'static str)> {
        let env = &patient.scene.env;
        let mut words = vec![(user_name(rustix::process::getuid().as_raw()), USER)];
        let names = ["USER", "LOGNAME", "SLURM_JOB_USER"];
        words.extend(names.iter().filter_map(|name| Some((env.owned(name)?, USER))));
        if let Some(home) = env.owned("HOME") {
            let real = Path::new(&home).canonicalize().ok();
            words.extend(real.map(|real| (real.display().to_string(), "~")));
            words.push((home, "~"));
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        words.extend([host, short, patient.scene.node_name()].map(|name| (name, "NODE")));
        words
    }

    /// Redacts one whole text, not a line of it: a name that is broken in two
    /// would not be found.
    pub fn apply(&self, text: &str) -> String {
        let pattern = |text| Regex::new(text).expect("the pattern is a constant");
        let whole = pattern(
            "(?i)((?:(?:GPU|MIG)-)*\\b[0-9a-f]{4})[0-9a-f]{4}(?:-[0-9a-f]{4}){3}-[0-9a-f]{8}([0-9a-f]{4})\\b",
        );
        // Its beginning, which is a name to CUDA, or what a long line left of it.
        let part = pattern("(?i)((?:GPU|MIG)-[0-9a-f]{4})[0-9a-f-]+");
        let home = pattern("(?i)(/(?:home|users)/)([\\w.@+-]+)");
        let text = whole.replace_all(text, "$1…$2");
        let mut text = part.replace_all(&text, "$1…").into_owned();
        for (word, shown) in &self.words {
            text = replace_words(&text, word, shown);
        }
        let of_someone = |found: &Captures| match &found[2] {
            USER => found[0].to_owned(),
            _ => format!("{}{OTHER}", &found[1]),
        };
        let text = home.replace_all(&text, of_someone);
        let path = pattern(PATH);
        path.replace_all(&text, |found: &Captures| match is_systems(&found[2]) {
            true => found[0].to_owned(),
            false => format!("{}{}", &found[1], shortened(&found[2])),
        })
        .into_owned()
    }
}

/// A path of two parts at least, and what stands before it.
const PATH: &str = "(^|[\\s'\"=:(,])(/[^\\s'\"=:(),;/]+/[^\\s'\"=:(),;]*)";

/// Whether a path is the system's or the driver's: no user has a folder there.
/// What is below a home has lost its name already.
fn is_systems(path: &str) -> bool {
    const ROOTS: [&str; 15] = [
        "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "opt", "proc", "run", "sbin",
        "sys", "users", "usr",
    ];
    const FOLDERS: [&str; 4] = ["/tmp/nvidia-mps", "/var/lib/", "/var/log/", "/var/spool/"];
    let root = path.split('/').nth(1).unwrap_or_default();
    ROOTS.contains(&root) || FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// Any part of another path may be a person's or a group's name: its first part
/// stays, and its last where its ending says that it is a file.
fn shortened(path: &str) -> String {
    const ENDINGS: [&str; 8] = [".sh", ".csh", ".fish", ".py", ".conf", ".so", ".so.1", "rc"];
    const NAMES: [&str; 4] = ["/activate", "/python", "/python3", "/state"];
    let (before, _) = path.rsplit_once('/').unwrap_or_default();
    let last = &path[before.len()..];
    let is_file = ENDINGS.iter().any(|ending| last.ends_with(ending)) || NAMES.contains(&last);
    let root = path.split('/').nth(1).unwrap_or_default();
    format!("/{root}/…{}", if is_file && !before.is_empty() { last } else { "" })
}

/// Replaces a text where it is not a part of a longer word.
fn replace_words(text: &str, word: &str, shown: &str) -> String {
    let part = |c: char| c.is_ascii_alphanumeric();
    let mut out = String::new();
    let mut last = 0;
    for (start, found) in text.match_indices(word) {
        let before = text[..start].chars().next_back().is_some_and(part);
        let after = text[start + found.len()..].chars().next().is_some_and(part);
        if start >= last && !before && !after {
            out += &text[last..start];
            out += shown;
            last = start + found.len();
        }
    }
    out + &text[last..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> String {
        let words = vec![("/home/ann".into(), "~"), ("ann".into(), USER), ("n1".into(), "NODE")];
        Redaction { words }.apply(text)
    }

    #[test]
    fn nothing_that_names_a_person_or_a_machine_is_left() {
        let text = "n1: GPU-8521313e-ac61-4b15-8300-36430748cd46 /home/ann/.bashrc:2 (user ann) \
                    planner n12 ann_train";
        assert_eq!(
            redacted(text),
            "NODE: GPU-8521…cd46 ~/.bashrc:2 (user USER) planner n12 USER_train"
        );
        assert_eq!(redacted("/home/bob/x, /gpfs/home/ann/y"), "/home/OTHER/x, /gpfs/…");
    }

    #[test]
    fn a_path_outside_of_homes_and_of_the_system_keeps_its_ends_only() {
        for (text, shown) in [
            ("/scratch/bob/env/bin/activate:12 sets X=1", "/scratch/…/activate:12 sets X=1"),
            ("'bash /work/grp/bob/run.sh' (pid 1)", "'bash /work/…/run.sh' (pid 1)"),
            ("CUDA_MPS_PIPE_DIRECTORY=/scratch/bob", "CUDA_MPS_PIPE_DIRECTORY=/scratch/…"),
            ("/data/bob/a:/data/bob.smith/b", "/data/…:/data/…"),
            ("/tmp/bob-mps/x, /tmp/nvidia-mps", "/tmp/…, /tmp/nvidia-mps"),
            (
                "/var/bob/x /var/spool/slurmd/job12/slurm_script",
                "/var/… /var/spool/slurmd/job12/slurm_script",
            ),
            ("/usr/lib/libcuda.so.580.159.04", "/usr/lib/libcuda.so.580.159.04"),
            ("MIG-GPU-8521/7/0 and/or 7/0", "MIG-GPU-8521/7/0 and/or 7/0"),
        ] {
            assert_eq!(redacted(text), shown);
        }
    }

    #[test]
    fn a_part_of_a_uuid_is_shortened_too() {
        for (text, shown) in [
            ("'GPU-8521313e'", "'GPU-8521…'"),
            ("GPU-8521313e-ac61-4b15-8300-36430748c", "GPU-8521…"),
            ("mig-8521313e-ac61", "mig-8521…"),
            ("MIG-GPU-8521313e-ac61-4b15-8300-36430748cd46/7/0", "MIG-GPU-8521…cd46/7/0"),
            ("8521313e-ac61-4b15-8300-36430748cd46", "8521…cd46"),
            ("MIG-GPU-8521313e-ac", "MIG-GPU-8521…"),
            ("GPU-8521", "GPU-8521"),
        ] {
            assert_eq!(redacted(text), shown);
        }
    }
}
