// The components of the admin's pages. They are registered, because Alpine's build without eval can't call
// global functions from a page's attributes.

// The menu at the side, the tabs of a form, of which `firstTab` is shown first, and the dialog.
function adminPage(firstTab) {
  return {
    activeTab: firstTab && (getCurrentTab() || firstTab),
    sidebarMobileOpen: false,
    sidebarDesktopOpen: localStorage.getItem("sidebarDesktopOpen") !== "0",
    // The theme's forms read `window.location` to keep the tab in the URL.
    window: { location: { pathname: location.pathname, search: location.search } },
    init() {
      this.$watch("sidebarDesktopOpen", (isOpen) =>
        localStorage.setItem("sidebarDesktopOpen", isOpen ? "1" : "0"));
    },
    // In a dialog, a page's link back only closes the dialog, so that the form behind it keeps its changes.
    closeDialog(event) {
      if (!this.openModal) return;
      event.preventDefault();
      this.openModal = false;
    },
  };
}

// The menu of the user's account.
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
