//! nginx's configuration language: directives with arguments, some with a block of others, and `include`.
//!
//! A directive's place is kept, for people. Bounded: bytes of a file, files, and how deep blocks and includes go.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const FILE_BYTES_MAX: u64 = 4 << 20;
const FILES_MAX: usize = 1024;
const DEPTH_MAX: usize = 64;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: Rc<Path>,
    /// From 1.
    pub(super) line: usize,
}

/// A directive.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<String>,
    /// What it has in braces, files that are included there in their place.
    pub(super) block: Option<Vec<Directive>>,
    pub(super) at: Place,
}

impl Directive {
    /// The first argument; empty without one.
    pub(super) fn first(&self) -> &str {
        self.args.first().map_or("", String::as_str)
    }

    /// The directives in its block.
    pub(super) fn inside(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Name and arguments, as they are written.
    pub(super) fn text(&self) -> String {
        let quoted = |arg: &String| match arg.is_empty() || arg.contains([' ', ';', '{', '\n', '\t']) {
            true => format!("{arg:?}"),
            false => arg.clone(),
        };
        std::iter::once(self.name.clone()).chain(self.args.iter().map(quoted)).collect::<Vec<_>>().join(" ")
    }
}

/// A file that an `include` names and that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Missing {
    pub(super) directive: Directive,
    pub(super) why: String,
}

/// Reads a file and those that it includes.
///
/// # Errors
/// It cannot be read, or one of them is no configuration.
pub(super) fn read(path: &Path) -> Result<(Vec<Directive>, Vec<Missing>)> {
    // `include` is relative to the directory of the main file, in whatever file it stands.
    let directory = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let mut reader = Reader { directory, files: 0, missing: Vec::new() };
    let directives = reader.file(path, 0)?;
    Ok((directives, reader.missing))
}

struct Reader {
    directory: PathBuf,
    files: usize,
    missing: Vec<Missing>,
}

impl Reader {
    fn file(&mut self, path: &Path, depth: usize) -> Result<Vec<Directive>> {
        let about = || format!("cannot read {}", path.display());
        self.files += 1;
        ensure!(
            self.files <= FILES_MAX,
            "{} is one file more than the {FILES_MAX} that may be included",
            path.display()
        );
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).with_context(about)?;
        ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "{} has more than {FILE_BYTES_MAX} bytes", path.display());
        let text = String::from_utf8(bytes).with_context(about)?;
        let mut tokens = Tokens { file: path.into(), rest: &text, line: 1 };
        let directives = self.block(&mut tokens, depth, false)?;
        Ok(directives)
    }

    fn block(&mut self, tokens: &mut Tokens<'_>, depth: usize, is_inner: bool) -> Result<Vec<Directive>> {
        ensure!(depth <= DEPTH_MAX, "{}: blocks or includes are more than {DEPTH_MAX} deep", tokens.place());
        let mut directives = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut at = tokens.at();
        loop {
            let token = tokens.next()?;
            if words.is_empty() {
                at = tokens.at();
            }
            match token {
                Some(Token::Word(word)) => words.push(word),
                Some(Token::End) if words.is_empty() => bail!("{}: `;` ends no directive", tokens.place()),
                Some(Token::End) => {
                    let directive = directive(&mut words, at.clone(), None);
                    match &*directive.name {
                        "include" => directives.extend(self.include(directive, depth)?),
                        _ => directives.push(directive),
                    }
                }
                Some(Token::Open) if words.is_empty() => bail!("{}: `{{` follows no directive", tokens.place()),
                Some(Token::Open) if words[0].ends_with("_by_lua_block") => {
                    tokens.skip_code()?;
                    directives.push(directive(&mut words, at.clone(), Some(Vec::new())));
                }
                Some(Token::Open) => {
                    let mut made = directive(&mut words, at.clone(), None);
                    made.block = Some(self.block(tokens, depth + 1, true)?);
                    directives.push(made);
                }
                Some(Token::Close) | None => {
                    ensure!(words.is_empty(), "{}: `{}` is not ended by `;`", tokens.place(), words.join(" "));
                    ensure!(is_inner == (token == Some(Token::Close)), "{}: braces do not match", tokens.place());
                    return Ok(directives);
                }
            }
        }
    }

    fn include(&mut self, directive: Directive, depth: usize) -> Result<Vec<Directive>> {
        let pattern = self.directory.join(directive.first());
        let pattern = pattern.to_string_lossy();
        let found: Vec<PathBuf> = match glob::glob(&pattern) {
            Ok(found) => found.flatten().collect(),
            Err(error) => bail!("{}:{}: {pattern}: {error}", directive.at.file.display(), directive.at.line),
        };
        if found.is_empty() && !pattern.contains(['*', '?', '[']) {
            self.missing.push(Missing { directive, why: format!("{pattern} is not there") });
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for path in found {
            all.extend(self.file(&path, depth + 1)?);
        }
        Ok(all)
    }
}

fn directive(words: &mut Vec<String>, at: Place, block: Option<Vec<Directive>>) -> Directive {
    let name = words.remove(0);
    Directive { name, args: std::mem::take(words), block, at }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
}

struct Tokens<'a> {
    file: Rc<Path>,
    rest: &'a str,
    line: usize,
}

impl Tokens<'_> {
    fn at(&self) -> Place {
        Place { file: Rc::clone(&self.file), line: self.line }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.file.display(), self.line)
    }

    fn take(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Result<Option<Token>> {
        loop {
            match self.peek() {
                None => return Ok(None),
                Some(c) if c.is_whitespace() => drop(self.take()),
                Some('#') => while self.take().is_some_and(|c| c != '\n') {},
                Some(c @ (';' | '{' | '}')) => {
                    self.take();
                    return Ok(Some(match c {
                        ';' => Token::End,
                        '{' => Token::Open,
                        _ => Token::Close,
                    }));
                }
                Some(quote @ ('"' | '\'')) => return self.quoted(quote).map(Some),
                Some(_) => return Ok(Some(self.word())),
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<Token> {
        let begin = self.place();
        self.take();
        let mut word = String::new();
        loop {
            match self.take() {
                Some(c) if c == quote => return Ok(Token::Word(word)),
                Some('\\') => self.escaped(&mut word),
                Some(c) => word.push(c),
                None => bail!("{begin}: a quote is not closed"),
            }
        }
    }

    /// What stands behind a backslash: as in nginx, which leaves one alone that escapes nothing.
    fn escaped(&mut self, word: &mut String) {
        match self.take() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }

    fn word(&mut self) -> Token {
        let mut word = String::new();
        while let Some(c) = self.peek() {
            match c {
                ';' | '}' => break,
                // `${name}` is a variable, other braces end the word.
                '{' if !word.ends_with('$') => break,
                c if c.is_whitespace() => break,
                '\\' => {
                    self.take();
                    self.escaped(&mut word);
                }
                '{' => {
                    while let Some(c) = self.take() {
                        word.push(c);
                        if c == '}' {
                            break;
                        }
                    }
                }
                c => {
                    self.take();
                    word.push(c);
                }
            }
        }
        Token::Word(word)
    }

    /// Skips a block that is another language's, by its braces.
    fn skip_code(&mut self) -> Result<()> {
        let begin = self.place();
        let mut depth = 1;
        while depth > 0 {
            match self.take() {
                Some('{') => depth += 1,
                Some('}') => depth -= 1,
                Some(_) => {}
                None => bail!("{begin}: a block is not closed"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Directive>> {
        let mut reader = Reader { directory: PathBuf::new(), files: 0, missing: Vec::new() };
        let mut tokens = Tokens { file: Path::new("t").into(), rest: text, line: 1 };
        reader.block(&mut tokens, 0, false)
    }

    #[test]
    fn words_quotes_blocks_and_places() {
        let text = "user www;\nhttp { # a comment; {\n  log_format m '$a \"b\" \\'c\\'';\n  location ~ \\.(png|jpg)$ {}\n \
                    return 301 https://${host}/x;\n  content_by_lua_block { if a then { } end }\n}\n";
        let all = parsed(text).unwrap();
        assert_eq!(all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["user", "http"]);
        let inside = all[1].inside();
        assert_eq!(inside[0].args, ["m", "$a \"b\" 'c'"]);
        assert_eq!((inside[1].args.as_slice(), inside[1].at.line), (&["~".to_string(), "\\.(png|jpg)$".into()][..], 4));
        assert_eq!(inside[2].args, ["301", "https://${host}/x"]);
        assert_eq!((inside[3].name.as_str(), inside.len()), ("content_by_lua_block", 4));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, said) in [
            ("a;\n}", "t:2: braces do not match"),
            ("a {\n", "t:2: braces do not match"),
            ("a\n", "t:2: `a` is not ended by `;`"),
            ("a 'b\n", "t:1: a quote is not closed"),
            (";", "t:1: `;` ends no directive"),
            ("{}", "t:1: `{` follows no directive"),
        ] {
            assert_eq!(parsed(text).unwrap_err().to_string(), said, "{text:?}");
        }
        let deep = "a {".repeat(100);
        assert!(parsed(&deep).unwrap_err().to_string().contains("64 deep"));
    }
}
