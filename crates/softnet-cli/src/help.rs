//! What stands below the options in `--help`, as a terminal of 80 columns has room for it.
//!
//! Help texts are written in lines of any length. Paragraphs are filled; the rows of tables and of
//! examples are folded, below the column of what they say. (clap would fold them as text.)

use clap::Command;

/// Columns of a page.
const WIDTH: usize = 80;

/// `command` with help for a page, its subcommands as well.
pub(crate) fn paged(command: Command) -> Command {
    // Options and what is about the command are folded by clap, which knows of narrower terminals.
    let mut command = command.max_term_width(WIDTH).mut_subcommands(paged);
    if let Some(help) = command.get_after_help() {
        let help = filled(&help.to_string(), WIDTH);
        command = command.after_help(help);
    }
    command
}

/// `help` in lines of up to `width` columns.
fn filled(help: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut paragraph = String::new();
    let mut rest = help.lines().peekable();
    while let Some(line) = rest.next() {
        if !line.is_empty() && !line.starts_with(' ') {
            let begins = ["Examples:", "Exit codes:"].iter().any(|title| line.starts_with(title));
            if begins && !paragraph.is_empty() {
                lines.extend(folded(&std::mem::take(&mut paragraph), width));
            }
            paragraph += if paragraph.is_empty() { "" } else { " " };
            paragraph += line;
            // What ends with a colon is the title of what follows.
            if !line.ends_with(':') && rest.peek().is_some_and(|next| !next.is_empty()) {
                continue;
            }
        }
        if !paragraph.is_empty() {
            lines.extend(folded(&std::mem::take(&mut paragraph), width));
            if !line.starts_with(' ') && !line.is_empty() {
                continue;
            }
        }
        let mut row = line.to_owned();
        if let Some(column) = second_column(line) {
            // Lines that go on below the second column are the row's, and are filled with it.
            while row.chars().count() > width || !row.ends_with(['.', ',', ';', ':']) {
                let Some(next) = rest.next_if(|next| !next.trim().is_empty() && indent(next) == column)
                else {
                    break;
                };
                row.push(' ');
                row += next.trim();
            }
        }
        lines.extend(folded(&row, width));
    }
    lines.extend(folded(&paragraph, width).into_iter().filter(|line| !line.is_empty()));
    lines.join("\n")
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Where the second column of a row begins, if it has one.
fn second_column(line: &str) -> Option<usize> {
    let start = indent(line);
    let at = line[start..].rfind("  ")?;
    Some(line[..start + at + 2].chars().count())
}

/// A line in as many as it takes. Those that follow begin below the second column, as in a table; if
/// that is too far to the right, what stands there gets lines of its own.
pub(crate) fn folded(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.to_owned()];
    }
    let start = indent(line);
    let (first, below) = match second_column(line) {
        Some(column) if column > width / 2 => {
            let at = line.rfind("  ").unwrap_or_default();
            let mut lines = folded(line[..at].trim_end(), width);
            lines.extend(folded(&format!("{}{}", " ".repeat(start + 8), &line[at + 2..]), width));
            return lines;
        }
        Some(column) => (start, column),
        None if start == 0 => (0, 0),
        None => (start, start + if line[start..].starts_with("softnet ") { 4 } else { 0 }),
    };
    let mut lines = vec![line[..first].to_owned()];
    for (at, word) in line[first..].split(' ').enumerate() {
        let last = lines.last_mut().expect("there is one");
        let longer = format!("{last}{}{word}", if at == 0 { "" } else { " " });
        if longer.chars().count() > width && !last.trim().is_empty() && !word.is_empty() {
            lines.push(format!("{}{word}", " ".repeat(below)));
        } else {
            *last = longer;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn wide_lines_are_folded_below_their_second_column() {
        assert_eq!(folded("  softnet demo   ten seconds", 72), ["  softnet demo   ten seconds"]);
        let line = "  softnet demo --json   what the server's thread used, and which thread polled for it";
        let expected =
            ["  softnet demo --json   what the server's thread used, and which thread", "polled for it"];
        assert_eq!(folded(line, 72), [expected[0].to_string(), " ".repeat(24) + expected[1]]);
        let line = format!("  softnet {}", ["word"; 20].join(" "));
        let [first, second] = [12, 8].map(|n| vec!["word"; n].join(" "));
        assert_eq!(folded(&line, 72), [format!("  softnet {first}"), format!("      {second}")]);
        // What says what it is about has no room beside it.
        let line = format!("  {}  and some more", "x".repeat(40));
        assert_eq!(folded(&line, 50), [format!("  {}", "x".repeat(40)), "          and some more".into()]);
    }

    #[test]
    fn paragraphs_are_filled_and_rows_stay() {
        let help = "\
A paragraph
of two lines.

  one    is said
         here
  two    is
Exit codes: 0 all
is right.

Examples:
  softnet one
  softnet two";
        let expected = help.replace("A paragraph\nof two lines.", "A paragraph of two\nlines.");
        assert_eq!(filled(help, 18), expected);
        assert_eq!(filled("one\ntwo", 80), "one two");
        assert_eq!(filled("", 80), "");
    }

    /// The help of all commands fits a terminal of 80 columns, and no line of it was broken by clap.
    #[test]
    fn help_fits_eighty_columns() {
        fn check(command: &mut Command) {
            let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let [short, long] = [command.render_help(), command.render_long_help()];
            for help in [after, short.to_string(), long.to_string()] {
                for line in help.lines() {
                    assert!(line.chars().count() <= WIDTH, "{name}: {line}");
                }
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut all = paged(crate::Cli::command());
        all.build();
        check(&mut all);
    }
}
