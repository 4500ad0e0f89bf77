//! The documents at `/docs`, for every server that this program starts.

use taskyard_server::ExtraRoutes;

/// The routes of the documents. They need no token: they show no data.
pub fn document_routes() -> ExtraRoutes {
    ExtraRoutes { router: taskyard_documents::router(), is_open: taskyard_documents::is_page }
}
