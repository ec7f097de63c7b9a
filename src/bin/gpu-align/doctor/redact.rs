//! What a page must not carry into a public issue: whole UUIDs, the user, the
//! host, the home.

use regex_lite::Regex;

use crate::inside::scene::Scene;

pub struct Redaction {
    /// Text and what stands for it, longest first.
    words: Vec<(String, &'static str)>,
}

impl Redaction {
    pub fn of_this_user(scene: &Scene) -> Redaction {
        let env = &scene.env;
        let mut words = Vec::new();
        let mut add = |text: Option<&str>, shown| {
            if let Some(text) = text.filter(|text| text.len() > 1 && *text != "/") {
                words.push((text.to_owned(), shown));
            }
        };
        add(env.get("HOME"), "~");
        for name in ["USER", "LOGNAME", "SLURM_JOB_USER"] {
            add(env.get(name), "USER");
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        add(Some(&host), "NODE");
        add(host.split('.').next(), "NODE");
        add(Some(&scene.node_name()), "NODE");
        words.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Redaction { words }
    }

    pub fn apply(&self, text: &str) -> String {
        let uuid = "((?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{4})[0-9a-fA-F]{4}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{8}([0-9a-fA-F]{4})";
        let uuid = Regex::new(uuid).expect("the pattern is a constant");
        let mut text = uuid.replace_all(text, "$1…$2").into_owned();
        for (word, shown) in &self.words {
            text = replace_words(&text, word, shown);
        }
        text
    }
}

/// Replaces a text where it is not a part of a longer word.
fn replace_words(text: &str, word: &str, shown: &str) -> String {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
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

    #[test]
    fn nothing_that_names_a_person_or_a_machine_is_left() {
        let redaction = Redaction {
            words: vec![("/home/ann".into(), "~"), ("ann".into(), "USER"), ("n1".into(), "NODE")],
        };
        let text = "n1: GPU-8521313e-ac61-4b15-8300-36430748cd46 /home/ann/.bashrc:2 (user ann) \
                    planner n12";
        assert_eq!(
            redaction.apply(text),
            "NODE: GPU-8521…cd46 ~/.bashrc:2 (user USER) planner n12"
        );
    }
}
