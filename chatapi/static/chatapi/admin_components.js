// The components of the admin's pages. Alpine's build without eval finds no global function from a page's
// attributes.

// The menu at the side, the tabs of a form, whose first tab is named, and the dialog.
function adminPage(firstTab) {
  return {
    activeTab: firstTab && (getCurrentTab() || firstTab),
    sidebarMobileOpen: false,
    sidebarDesktopOpen: localStorage.getItem("sidebarDesktopOpen") !== "0",
    // The theme's forms read it to keep the tab in the URL.
    window: { location: { pathname: location.pathname, search: location.search } },
    init() {
      this.$watch("sidebarDesktopOpen", (isOpen) =>
        localStorage.setItem("sidebarDesktopOpen", isOpen ? "1" : "0"));
    },
    // A link of the page that is shown in the dialog leads back by closing it, so that the form below keeps
    // its changes.
    closeDialog(event) {
      if (!this.openModal) return;
      event.preventDefault();
      this.openModal = false;
    },
  };
}

// The menu of one's account.
function userMenu() {
  return {
    openUserLinks: false,
    leave() {
      this.openUserLinks = false;
      this.$refs.opener.focus();
    },
  };
}

document.addEventListener("alpine:init", () => {
  for (const component of [theme, searchForm, searchCommand, adminPage, userMenu])
    Alpine.data(component.name, component);
});
