"""Makes README.md and the pages of docs/ a site: the hooks of mkdocs, which `make site` runs.

A file has the same path in the site as in the repository, so each relative link leads to the same file in both. The site
holds the pages and the files that pages link to; a source file ends in .txt there, which every browser shows."""
import logging
import os
import re
import shutil

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "tests/README.md", "tests/PROMISES.md", "bundle/README.md")
LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]*))?\)")
SHOWN = (".svg", ".png", ".css", ".json", ".md")  # by every browser as they are; what has no ending is text
log = logging.getLogger("mkdocs.plugins.make_site")


def pages(top=TOP):
    """Paths of all pages, relative to the top of the repository. `x.in.md` is the source of a page, no page."""
    found = [os.path.relpath(os.path.join(folder, name), top) for folder, _, names in os.walk(os.path.join(top, "docs"))
             for name in names if name.endswith(".md") and not name.endswith(".in.md")]
    return [page for page in PAGES if os.path.exists(os.path.join(top, page))] + sorted(found)


def prose(text):
    """A page without its blocks of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"(?<=\n)\n(?: {4}[^\n]*\n|\n)+", "\n\n", text)


def links(text):
    """[(path, anchor)] of a page's links into the repository; "" where a link has none."""
    return [link for link in LINK.findall(prose(text)) if any(link)]


def slug(heading, separator="-"):
    """The anchor that GitHub and GitLab give a heading; mkdocs is told to give the same."""
    return re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", separator)


def anchors(text):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(text), re.M)}


def broken_links(page, text, top=TOP):
    """One sentence for each link that leads to no file, or to no heading of a page."""
    found = []
    for path, anchor in links(text):
        there = text
        if path:
            target = os.path.join(top, os.path.dirname(page), path)
            if not os.path.isfile(target):
                found.append(f"{page}: {path} is no file")
                continue
            with open(target, encoding="utf-8") as f:
                there = f.read()
        if anchor and anchor not in anchors(there):
            found.append(f"{page}: {path}#{anchor}: no heading of that name")
    return found


# ---- hooks of mkdocs

def on_config(config):
    config["mdx_configs"]["toc"] = {"slugify": slug, "toc_depth": "2-3"}
    return config


def on_files(files, config):
    """Replaces the files below docs/ by the pages and what they link to, with paths from the top of the repository."""
    from mkdocs.structure.files import File, Files  # mkdocs imports this module; tests do without mkdocs

    wanted = set(config["extra_css"])
    for page in pages():
        with open(os.path.join(TOP, page), encoding="utf-8") as f:
            text = f.read()
        for sentence in broken_links(page, text):
            log.warning(sentence)
        wanted |= {page} | {os.path.normpath(os.path.join(os.path.dirname(page), path)) for path, _ in links(text) if path}
    files = Files([file for file in files if not file.abs_src_path.startswith(config["docs_dir"])])  # the theme's
    for path in sorted(path for path in wanted if os.path.isfile(os.path.join(TOP, path))):
        file = File(path, TOP, config["site_dir"], config["use_directory_urls"])
        if "." in os.path.basename(path) and not path.endswith(SHOWN):
            file.dest_uri, file.url = path + ".txt", path + ".txt"
            file.abs_dest_path = os.path.join(config["site_dir"], file.dest_uri)
        files.append(file)
    return files


def on_nav(nav, config, files):
    """Each page is in the navigation: mkdocs itself only mentions those that are not."""
    listed = {page.file.src_uri for page in nav.pages}
    for file in files.documentation_pages():
        if file.src_uri not in listed:
            log.warning(f"{file.src_uri} is not in the navigation of mkdocs.yml")
    return nav


def on_post_build(config):
    """Debian's mkdocs has the theme's jQuery under the name of another version, and lacks small scripts that the pages name."""
    scripts = os.path.join(config["site_dir"], "js")
    jquery = next((name for name in os.listdir(scripts) if name.startswith("jquery")), None)
    with open(os.path.join(config["site_dir"], "index.html"), encoding="utf-8") as f:
        named = set(re.findall(r'src="js/([^"]+)"', f.read()))
    for name in named - set(os.listdir(scripts)):
        if name.startswith("jquery") and jquery:
            shutil.copy(os.path.join(scripts, jquery), os.path.join(scripts, name))
        else:
            open(os.path.join(scripts, name), "w", encoding="utf-8").close()
