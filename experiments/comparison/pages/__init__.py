"""The report's sections. SECTIONS has a macro for each in sections.html, which escapes what it is given; drawings are Markup."""
import os

import jinja2

SECTIONS = jinja2.Environment(loader=jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__))), autoescape=True,
                              undefined=jinja2.StrictUndefined).get_template("sections.html").module
