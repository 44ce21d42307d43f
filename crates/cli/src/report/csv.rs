//! `--csv`: a record for each host, for spreadsheets (RFC 4180, with the newline of this system).

use super::json::Fields;
use super::{HostResult, output::Output};
use std::io::{self, Write};

/// Writes the names of the fields.
///
/// # Errors
/// Writing to `out` fails.
pub(crate) fn write_header(out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"host,kind,status,signal,error,execution,stdout,stderr,started,seconds,warm\n")
}

/// Writes one record: the fields of `--json`, with the output byte for byte.
///
/// # Errors
/// Errors of `out`, and of reading output from disk.
pub(crate) fn write(out: &mut impl Write, result: &HostResult) -> io::Result<()> {
    let fields = Fields::from_result(result);
    let status = fields.status.map(|status| status.to_string()).unwrap_or_default();
    for text in [
        fields.host,
        fields.kind,
        &status,
        fields.signal.unwrap_or_default(),
        fields.error.unwrap_or_default(),
        fields.execution,
    ] {
        write_text(out, text.as_bytes())?;
        out.write_all(b",")?;
    }
    for output in [&result.stdout, &result.stderr] {
        write_output(out, output)?;
        out.write_all(b",")?;
    }
    writeln!(out, "{},{},{}", fields.started, fields.seconds, fields.warm)
}

fn write_text(out: &mut impl Write, text: &[u8]) -> io::Result<()> {
    if text.iter().any(|byte| b",\"\r\n".contains(byte)) {
        out.write_all(b"\"")?;
        write_doubled(out, text)?;
        return out.write_all(b"\"");
    }
    out.write_all(text)
}

fn write_output(out: &mut impl Write, output: &Output) -> io::Result<()> {
    out.write_all(b"\"")?;
    output.each_piece(|piece| write_doubled(out, piece))?;
    out.write_all(b"\"")
}

/// Writes text with each quotation mark doubled.
fn write_doubled(out: &mut impl Write, text: &[u8]) -> io::Result<()> {
    for part in text.split_inclusive(|&byte| byte == b'"') {
        out.write_all(part)?;
        if part.ends_with(b"\"") {
            out.write_all(b"\"")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{failure, result};
    use super::super::{Execution, Outcome};
    use super::*;

    #[test]
    fn records_are_quoted_where_they_have_to_be() {
        let lost = failure("network", "the \"link\", gone", Execution::MayHaveStarted);
        let mut out = Vec::new();
        write_header(&mut out).expect("a Vec takes everything");
        for result in [
            result("web1", Outcome::Exited(0), "a \"b\"\nc,d\n"),
            result("w2", lost, ""),
        ] {
            write(&mut out, &result).expect("a Vec takes everything");
        }
        let text = String::from_utf8(out).expect("text");
        insta::assert_snapshot!(text, @r#"
        host,kind,status,signal,error,execution,stdout,stderr,started,seconds,warm
        web1,exited,0,,,finished,"a ""b""
        c,d
        ","",1700000000.25,1.5,true
        w2,network,,,"the ""link"", gone",may have started,"","",1700000000.25,1.5,true
        "#);
    }
}
