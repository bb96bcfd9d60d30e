# `make install` and `make uninstall` (PREFIX=, DESTDIR=), and `make deb`: the same files as a package of Debian or Ubuntu.
# install builds only where nothing is built yet, so that `sudo make install` leaves no file of root's in the sources.
PREFIX    ?= /usr/local
DESTDIR   ?=
DEB_BUILD ?= $(BUILD)/deb-build
DEB       ?= $(BUILD)

.PHONY: install uninstall deb deb-parts
install: $(if $(wildcard $(BUILD)/starring),,all)
	@python3 packaging/install.py --build $(BUILD) --prefix "$(PREFIX)" --destdir "$(DESTDIR)"
uninstall:
	@python3 packaging/install.py --uninstall --prefix "$(PREFIX)" --destdir "$(DESTDIR)"

# Not this machine's vector instructions but those of the last ten years, unless ARCH= is given.
deb:
	@$(MAKE) --no-print-directory $(JOBS) BUILD=$(DEB_BUILD) DEB=$(DEB) ARCH=$(BUNDLE_ARCH) all deb-parts
deb-parts: $(BUILD)/starring
	@python3 packaging/make_deb.py --build $(BUILD) --out $(DEB)
