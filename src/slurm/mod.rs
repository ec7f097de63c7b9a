//! What Slurm said: its configuration files, read as Slurm reads them.

mod autodetect;
pub mod conf;
pub mod gres_conf;
pub mod gres_list;
pub mod hostlist;
pub mod numbering;
