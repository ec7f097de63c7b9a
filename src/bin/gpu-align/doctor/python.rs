//! The frameworks of the active Python environment, by their files: none is
//! imported, since that could take minutes, hang or start CUDA.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu_align::node::child::{self, Group};
use gpu_align::node::text;
use serde::Serialize;

use crate::inside::env::Env;

const PATIENCE: Duration = Duration::from_secs(10);
const MAX_PATHS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Python {
    pub interpreter: String,
    pub packages: Vec<Package>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// The CUDA that it was built for, where its files say so.
    pub cuda: Option<String>,
}

/// The packages that are looked for, as their dist-info or egg-info spells them.
const WANTED: [&str; 24] = [
    "torch",
    "jax",
    "jaxlib",
    "jax_cuda12_plugin",
    "jax_cuda13_plugin",
    "tensorflow",
    "cupy",
    "cupy_cuda11x",
    "cupy_cuda12x",
    "cupy_cuda13x",
    "vllm",
    "deepspeed",
    "ray",
    "ray_lightning",
    "dask_cuda",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "horovod",
    "numba",
    "openmm",
    "openmmtools",
    "meld",
    "gprmax",
];

impl Python {
    /// What may name somebody.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let Python { interpreter, packages } = self;
        let of_package = |package| {
            let Package { name, version, cuda }: &mut Package = package;
            [name, version].into_iter().chain(cuda)
        };
        [interpreter].into_iter().chain(packages.iter_mut().flat_map(of_package))
    }

    pub fn says(&self) -> String {
        if self.packages.is_empty() {
            return format!("{}: no framework that uses CUDA was found", self.interpreter);
        }
        let package = |package: &Package| {
            let cuda = package.cuda.as_ref().map(|cuda| format!(" (CUDA {cuda})"));
            format!("{} {}{}", package.name, package.version, cuda.unwrap_or_default())
        };
        let packages: Vec<String> = self.packages.iter().map(package).collect();
        format!("{}: {}", self.interpreter, packages.join(", "))
    }
}

/// Asks the interpreter that comes first on PATH where it looks for modules.
pub fn look(env: &Env) -> Result<Python, String> {
    let folders = env.get("PATH").unwrap_or_default().split(':').map(Path::new);
    let candidates = folders.flat_map(|folder| ["python3", "python"].map(|name| folder.join(name)));
    let interpreter = candidates
        .into_iter()
        .find(|file| file.is_file())
        .ok_or("Python: there is none on PATH")?;
    let pass = [
        "PATH",
        "HOME",
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "LD_LIBRARY_PATH",
    ];
    let environment: Vec<(&str, &OsStr)> =
        pass.iter().filter_map(|name| Some((*name, OsStr::new(env.get(name)?)))).collect();
    let question = ["-c", "import sys; print('\\n'.join(sys.path))"];
    let output =
        child::run_with(&interpreter, &question, &environment, Group::Own, PATIENCE, 64 << 10)
            .map_err(|why| format!("Python: {why}"))?;
    if output.code != 0 {
        return Err(format!("Python: {} does not start", interpreter.display()));
    }
    let paths = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths: Vec<PathBuf> = paths
        .lines()
        .filter(|path| path.starts_with('/'))
        .take(MAX_PATHS)
        .map(PathBuf::from)
        .collect();
    Ok(Python { interpreter: interpreter.display().to_string(), packages: packages(&paths) })
}

/// The wanted packages in these folders; of two with one name the first counts.
fn packages(paths: &[PathBuf]) -> Vec<Package> {
    let mut found: Vec<Package> = Vec::new();
    for path in paths {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let Some((name, version)) = file.to_str().and_then(described) else { continue };
            let name = name.to_ascii_lowercase().replace(['-', '.'], "_");
            if WANTED.contains(&name.as_str()) && found.iter().all(|known| known.name != name) {
                let cuda = cuda_of(&name, version, path);
                found.push(Package { name, version: version.to_owned(), cuda });
            }
        }
    }
    let place = |package: &Package| WANTED.iter().position(|name| *name == package.name);
    found.sort_by_key(place);
    found
}

/// Name and version of `torch-2.11.0.dist-info`, or of `OpenMM-8.1.1-py3.10.egg-info`,
/// which packages have that no wheel brought.
fn described(file: &str) -> Option<(&str, &str)> {
    let stem = file.strip_suffix(".dist-info").or_else(|| file.strip_suffix(".egg-info"))?;
    let (name, version) = stem.split_once('-')?;
    Some((name, version.split_once("-py").map_or(version, |(version, _)| version)))
}

fn cuda_of(name: &str, version: &str, path: &Path) -> Option<String> {
    if name == "torch" {
        // cuda: Optional[str] = '12.8'
        let file = text::read(&path.join("torch/version.py"), 4096).ok()?;
        let line = file.lines().find(|line| line.starts_with("cuda"))?;
        let value = line.split_once('=')?.1.trim().trim_matches(['\'', '"']);
        return Some(if value == "None" { "none".into() } else { value.to_owned() });
    }
    let digits = name.split("cuda").nth(1)?.trim_end_matches(|c: char| !c.is_ascii_digit());
    let _ = version;
    let digits = digits.trim_end_matches("_plugin").trim_end_matches('x');
    (!digits.is_empty()).then(|| digits.to_owned())
}

/// `2.11.0+cu130` → (2, 11).
pub fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split(['.', '+', '-']).map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse().unwrap_or(0)
    });
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_known_by_their_folders() {
        let root = tempfile::tempdir().unwrap();
        for name in ["torch-2.11.0+cu130", "vllm-0.22.1", "jax_cuda12_plugin-0.5", "numpy-2.0"] {
            fs::create_dir(root.path().join(format!("{name}.dist-info"))).unwrap();
        }
        fs::write(root.path().join("OpenMM-8.1.1-py3.10.egg-info"), "").unwrap();
        fs::create_dir(root.path().join("torch")).unwrap();
        let version = "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n";
        fs::write(root.path().join("torch/version.py"), version).unwrap();
        let python = Python {
            interpreter: "/usr/bin/python3".into(),
            packages: packages(&[root.path().to_path_buf()]),
        };
        assert_eq!(
            python.says(),
            "/usr/bin/python3: torch 2.11.0+cu130 (CUDA 13.0), jax_cuda12_plugin 0.5 (CUDA 12), \
             vllm 0.22.1, openmm 8.1.1"
        );
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(numbers("2.11.0+cu130"), (2, 11));
        assert_eq!(numbers("0.9rc1"), (0, 9));
        assert_eq!(numbers("x"), (0, 0));
    }
}
