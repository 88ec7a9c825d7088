//! Man pages and completions, which packages have, from the same words as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::help::folded;
use crate::{Cli, Failure};

/// Write man pages to DIR/man and completions of shells to DIR/completions.
#[derive(clap::Args)]
pub(crate) struct Generate {
    /// Where to; made if it is not there.
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn generate(args: &Generate) -> Result<(), Failure> {
    let (man, completions) = (args.dir.join("man"), args.dir.join("completions"));
    let written = fs::create_dir_all(&man)
        .and_then(|()| fs::create_dir_all(&completions))
        .and_then(|()| pages(&visible(), &man))
        .and_then(|()| complete(&completions));
    written.map_err(|error| Failure::of(&format!("writing below {}", args.dir.display()), error))
}

/// The program without what its help does not show, either. (clap has no way to take a subcommand
/// away, so this is a new command with the others.)
fn visible() -> Command {
    let all = Cli::command();
    let mut shown = Command::new("softnet")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_help(all.get_after_help().cloned().unwrap_or_default())
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(all.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned());
    shown.build();
    shown
}

fn complete(dir: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut visible(), "softnet", dir)?;
    }
    Ok(())
}

/// A page for the command and each one below it.
fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    for sub in command.get_subcommands() {
        pages(sub, dir)?;
    }
    let source = concat!("softnet ", env!("CARGO_PKG_VERSION"));
    // An empty date would not be quoted, and the source be taken for it.
    let man =
        Man::new(command.clone().disable_help_subcommand(true)).date(" ").source(source).manual("softnet");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::default();
    if let Some(help) = command.get_after_help() {
        after_help(&mut rest, &help.to_string());
    }
    see_also(&mut rest, command);
    rest.to_writer(&mut page)?;
    fs::write(dir.join(man.get_filename()), page)
}

/// Columns that man's margin leaves of a page of 80.
const WIDTH: usize = 72;

/// What is below the options in `--help`. Indented lines stay as they are; others are filled.
/// (clap_mangen would fill all of them.)
fn after_help(page: &mut Roff, help: &str) {
    let (mut section, mut kept) = (false, false);
    for line in help.lines() {
        let indented = line.starts_with(' ');
        if kept && !indented && !line.is_empty() {
            page.control("fi", []);
            kept = false;
        }
        if line == "Examples:" {
            page.control("SH", ["EXAMPLES"]);
            section = true;
        } else if let Some(codes) = line.strip_prefix("Exit codes: ") {
            page.control("SH", ["EXIT STATUS"]).text([roman(codes)]);
            section = true;
        } else if line.is_empty() && !kept {
            page.control("PP", []);
        } else {
            if !section {
                page.control("SH", ["NOTES"]);
                section = true;
            }
            if indented && !kept {
                page.control("nf", []);
                kept = true;
            }
            for line in if kept { folded(line, WIDTH) } else { vec![line.to_string()] } {
                page.text([roman(line)]);
            }
        }
    }
    if kept {
        page.control("fi", []);
    }
}

fn see_also(page: &mut Roff, command: &Command) {
    let name = command.get_display_name().unwrap_or(command.get_name());
    if let Some((parent, _)) = name.rsplit_once('-') {
        let page_of: [Inline; 2] = [bold(parent), roman("(1)")];
        page.control("SH", ["SEE ALSO"]).text(page_of);
    }
}
